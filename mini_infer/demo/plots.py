"""What stories are about: wishes, what stands in their way, how it is overcome, and what is learned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wish:
    """`want`: "find the golden bell"; `done`: "found the golden bell"."""

    family: str  # journey, craft, skill: which obstacles fit
    want: str
    done: str


@dataclass(frozen=True, slots=True)
class Obstacle:
    """`past` tells it, `now` is said of it; each solution is (what the helper did, what both did)."""

    past: str
    now: str
    solutions: tuple[tuple[str, str], ...]


THINGS = tuple(
    """bell key kite lantern book map drum ring hat scarf coin shell stone flower feather button star flute basket
    mirror clock box crown spoon whistle compass ball boot blanket cup""".split()
)
THING_ADJECTIVES = ("golden", "silver", "red", "blue", "lost", "shiny", "old", "tiny", "magic", "glass")
SIGHTS = (
    "the sea",
    "the big waterfall",
    "the old lighthouse",
    "the end of the rainbow",
    "the top of the mountain",
    "the secret garden",
    "the first snow",
    "the great city",
    "the moonlit lake",
    "the flying lanterns",
    "the place where the sun sleeps",
    "the tallest tree of all",
)
GIFTS = (
    "a letter",
    "a pot of soup",
    "a basket of apples",
    "a jar of honey",
    "a birthday cake",
    "a warm coat",
    "a bunch of roses",
    "a bag of seeds",
)
RECEIVERS = (
    "the old king",
    "the queen",
    "the sick miller",
    "a friend on the hill",
    "the lighthouse keeper",
    "the new neighbor",
    "the village school",
    "the woman in the tower",
)
CRAFTS = (  # want, done
    ("bake a plum cake", "baked the plum cake"),
    ("build a small boat", "built the small boat"),
    ("paint a big picture", "painted the big picture"),
    ("plant a rose garden", "planted the rose garden"),
    ("sew a warm blanket", "sewed the warm blanket"),
    ("make a paper lantern", "made the paper lantern"),
    ("knit a long scarf", "knitted the long scarf"),
    ("carve a wooden horse", "carved the wooden horse"),
    ("build a tree house", "built the tree house"),
    ("cook a pumpkin soup", "cooked the pumpkin soup"),
    ("make a puppet theater", "made the puppet theater"),
    ("build a stone oven", "built the stone oven"),
    ("write a funny song", "wrote the funny song"),
    ("make a giant kite", "made the giant kite"),
    ("bake a berry pie", "baked the berry pie"),
    ("build a little bridge", "built the little bridge"),
)
SKILLS = (  # after "learn to"
    "swim",
    "sing",
    "dance",
    "read",
    "whistle",
    "juggle",
    "climb trees",
    "ride a bicycle",
    "play the flute",
    "skate on the ice",
    "tell jokes",
    "draw the moon",
    "tie knots",
    "row a boat",
    "count to a hundred",
    "play the drum",
)

OBSTACLES: dict[str, tuple[Obstacle, ...]] = {
    "journey": (
        Obstacle(
            "a wide river lay across the path",
            "the river is too wide",
            (
                ("knew how to tie logs together", "built a raft and floated to the other side"),
                ("found a long branch", "laid it over the water and walked across"),
                ("pointed to a row of flat stones", "hopped from stone to stone"),
            ),
        ),
        Obstacle(
            "a thick fog covered the land",
            "the fog is too thick",
            (
                ("had a bright lamp", "walked slowly behind the light"),
                ("could hear the bells of the village", "followed the sound step by step"),
                ("held one end of a long rope", "found the way without getting lost"),
            ),
        ),
        Obstacle(
            "a big storm began to blow",
            "the storm is too strong",
            (
                ("knew a dry cave", "waited there until the storm was over"),
                ("lifted a large leaf", "hid under it until the rain stopped"),
                ("found an empty barn", "told each other stories until the sun came out"),
            ),
        ),
        Obstacle(
            "an old gate was locked",
            "the gate is locked",
            (
                ("saw a small hole in the fence", "crawled through it"),
                ("found the key under a flowerpot", "opened the gate"),
                ("called the guard", "asked kindly to be let in"),
            ),
        ),
        Obstacle(
            "the path went through a dark cave",
            "the cave is too dark",
            (
                ("caught the light in a mirror", "walked through the cave without fear"),
                ("began to sing", "went on until the song filled the whole cave"),
                ("called the fireflies", "followed their light to the other end"),
            ),
        ),
        Obstacle(
            "a steep wall of rock rose up ahead",
            "the rock is too steep",
            (
                ("let down a long rope", "climbed up hand over hand"),
                ("knew some hidden steps", "climbed them one by one"),
                ("pushed from below", "reached the top before the evening"),
            ),
        ),
        Obstacle(
            "deep snow covered the road",
            "the snow is too deep",
            (
                ("had an old sled", "raced down the hill"),
                ("tied flat boards under their feet", "walked over the snow"),
                ("dug with all its might", "cleared a small path"),
            ),
        ),
        Obstacle(
            "the map fell into the water",
            "the map is gone",
            (
                ("remembered the way", "drew a new map in the sand"),
                ("looked up at the stars", "followed the brightest one"),
                ("asked the birds", "listened to what they said about the way"),
            ),
        ),
        Obstacle(
            "the bridge was broken",
            "the bridge is broken",
            (
                ("brought a hammer and some nails", "mended the bridge"),
                ("rolled a tree over the gap", "walked carefully to the other side"),
                ("knew another way", "walked around the valley"),
            ),
        ),
        Obstacle(
            "an angry goose stood in the way",
            "the goose is angry",
            (
                ("offered the goose some corn", "passed by on tiptoe"),
                ("asked the goose what was wrong", "helped it to find its eggs"),
                ("told the goose a joke", "laughed until the goose laughed too"),
            ),
        ),
    ),
    "craft": (
        Obstacle(
            "the cupboard was empty",
            "I have nothing to work with",
            (
                ("brought a full basket", "looked for what was needed"),
                ("knew a good place in the woods", "gathered everything in one afternoon"),
                ("asked all the neighbors", "got a little from everyone"),
            ),
        ),
        Obstacle(
            "the best tool broke in two",
            "my best tool is broken",
            (
                ("knew how to fix things", "mended it with string and glue"),
                ("had a better one", "took turns with it"),
                ("cut a new handle", "went back to work"),
            ),
        ),
        Obstacle(
            "rain came in through the roof",
            "everything is wet",
            (
                ("held up a big umbrella", "worked under it until it was dark"),
                ("climbed onto the roof", "closed the hole with straw"),
                ("lit a warm fire", "waited until everything was dry"),
            ),
        ),
        Obstacle(
            "the work was much too hard",
            "the work is too hard",
            (
                ("cut it into small parts", "did one part each day"),
                ("knew an easy trick", "finished the hard part in an hour"),
                ("began to hum a tune", "worked in time to the music"),
            ),
        ),
        Obstacle(
            "the first try went wrong",
            "nothing turns out right",
            (
                ("explained what had gone wrong", "started again from the beginning"),
                ("drew a careful plan", "followed it step by step"),
                ("gave good advice", "tried it in a new way"),
            ),
        ),
        Obstacle(
            "a gust of wind blew everything away",
            "the wind took everything",
            (
                ("ran after every piece", "put the pieces back together"),
                ("closed the windows", "picked up everything from the floor"),
                ("found a quiet corner", "started once more"),
            ),
        ),
    ),
    "skill": (
        Obstacle(
            "it was harder than it looked",
            "it is too hard",
            (
                ("showed how it was done", "practiced every day"),
                ("started with the easy part", "did a little more each time"),
                ("was a good teacher", "worked at it until the moon rose"),
            ),
        ),
        Obstacle(
            "the others laughed at every mistake",
            "everyone laughs at me",
            (
                ("said that mistakes are good teachers", "laughed about them and tried again"),
                ("knew a place where no one could see them", "practiced there in secret"),
                ("made the same mistakes on purpose", "giggled until nobody was afraid"),
            ),
        ),
        Obstacle(
            "there was no one to teach it",
            "I have no teacher",
            (
                ("knew a little about it", "found out the rest"),
                ("had an old book about it", "read one page each evening"),
                ("offered to help", "learned it side by side"),
            ),
        ),
        Obstacle(
            "the first lesson ended in a big splash of mud",
            "I always fall down",
            (
                ("brought a soft pillow", "tried again without fear"),
                ("held out a helping hand", "took one small step after another"),
                ("promised to stay close", "began again very slowly"),
            ),
        ),
        Obstacle(
            "fear came and would not go away",
            "I am too afraid",
            (
                ("counted slowly to three", "took a deep breath and began"),
                ("had once been afraid too", "talked about it for a long time"),
                ("gave away a lucky pebble", "felt a little braver every day"),
            ),
        ),
    ),
}
MORALS: dict[str, tuple[str, ...]] = {
    "journey": (
        "a long way is shorter with a friend",
        "the best part of a journey is the company",
        "every path begins with one small step",
        "asking for help is not a weakness",
        "courage grows with every step",
        "there is always another way",
    ),
    "craft": (
        "good work takes time",
        "two pairs of hands are better than one",
        "every mistake teaches something new",
        "sharing makes everything easier",
        "small steps lead to big things",
        "it is never too late to start again",
    ),
    "skill": (
        "practice makes every day a little easier",
        "nobody is born a master",
        "it is all right to make mistakes",
        "a good teacher is worth more than gold",
        "patience is stronger than talent",
        "fear gets smaller when it is shared",
    ),
}
