"""The words of the stories: who, where and how. Order matters: earlier entries are told more often."""

from __future__ import annotations

ANIMALS = tuple(
    """fox bear rabbit owl mouse cat dog duck frog deer squirrel turtle lion tiger elephant monkey penguin horse
    goat sheep cow pig goose swan crow sparrow beaver badger otter mole raccoon wolf panda koala camel giraffe zebra
    parrot snail bee butterfly hedgehog kitten puppy lamb pony hare crab seal donkey lizard bat hamster
    chicken snake""".split()
)
BEINGS = tuple(
    "dragon robot unicorn dinosaur fairy wizard knight pirate baker farmer gardener painter sailor miller teacher "
    "child giant elf doctor shepherd".split()
)
WOMEN = ("girl", "princess", "queen", "woman", "grandmother")
MEN = ("boy", "prince", "king", "man", "grandfather")
SPECIES = ANIMALS + BEINGS + WOMEN + MEN

FEMALE_NAMES = tuple(
    """Ruby Luna Mia Nora Lily Ella Daisy Rosie Hazel Ivy Poppy Willow Clara Molly Tilda Wanda Fern Pearl Stella Zoe
    Anna Bella Greta Juno Emma Sara""".split()
)
MALE_NAMES = tuple(
    """Milo Oscar Finn Leo Max Bruno Toby Hugo Otto Felix Jasper Theo Sam Ben Rusty Barney Ollie Ned Gus Pip Rufus Tom
    Emil Arlo Jack Paul""".split()
)

PLACES = (  # preposition, noun
    ("in", "forest"),
    ("in", "village"),
    ("by", "lake"),
    ("in", "valley"),
    ("on", "hill"),
    ("on", "farm"),
    ("in", "garden"),
    ("by", "river"),
    ("in", "town"),
    ("in", "cottage"),
    ("near", "meadow"),
    ("by", "sea"),
    ("in", "castle"),
    ("in", "cave"),
    ("on", "mountain"),
    ("on", "island"),
    ("near", "bridge"),
    ("by", "pond"),
    ("in", "barn"),
    ("near", "mill"),
    ("near", "market"),
    ("by", "road"),
    ("in", "desert"),
    ("in", "city"),
)
PLACE_ADJECTIVES = ("quiet", "small", "green", "sunny", "old", "wide", "misty", "windy", "pretty", "distant")

TRAITS: dict[str, tuple[str, str]] = {  # {N} name, {P}/{p} she/he, {s} her/his
    "brave": ("{P} was not afraid of the dark, and {p} was not afraid of thunder.", "{P} always went first."),
    "shy": ("{P} spoke in a soft voice and liked to hide behind trees.", "{P} turned red when someone said hello."),
    "kind": ("{P} shared {s} bread with everyone who was hungry.", "{P} had a good word for everyone."),
    "curious": ("{P} asked questions all day long.", "{P} wanted to know what was behind every door."),
    "clever": ("{P} could solve every riddle.", "{P} always had a good idea."),
    "little": ("{P} was so small that {p} could sleep in a shoe.", "{P} was small, but {s} heart was big."),
    "lonely": ("{P} had no one to play with.", "{P} often sat alone and watched the clouds."),
    "lazy": ("{P} liked to sleep until noon.", "{P} did not like to get up in the morning."),
    "happy": ("{P} sang a song every morning.", "{P} laughed more than anyone else."),
    "sad": ("{P} had not smiled for a long time.", "{P} sighed all day and did not know why."),
    "grumpy": ("{P} grumbled from morning to night.", "{P} did not like visitors."),
    "gentle": ("{P} never hurt even the smallest ant.", "{P} walked softly so that no flower was crushed."),
    "proud": ("{P} thought that {p} could do everything alone.", "{P} never asked anyone for help."),
    "hungry": ("{P} could eat ten pies in one day.", "{P} was always looking for something to eat."),
    "sleepy": ("{P} yawned all day.", "{P} could fall asleep in the middle of a word."),
    "wise": ("{P} knew a lot about the stars.", "{P} had read many old books."),
    "silly": ("{P} wore a pot as a hat.", "{P} liked to walk backwards."),
    "friendly": ("{P} said hello to everyone.", "{P} waved at every cloud."),
    "stubborn": ("{P} never changed {s} mind.", "{P} did everything in {s} own way."),
    "patient": ("{P} could wait all day without a word.", "{P} never hurried."),
    "careful": ("{P} looked twice before every step.", "{P} counted everything two times."),
    "busy": ("{P} worked from morning to night.", "{P} never had time to rest."),
    "clumsy": ("{P} often fell over {s} own feet.", "{P} broke a cup almost every day."),
    "cheerful": ("{P} whistled while {p} worked.", "{P} smiled even when it rained."),
    "playful": ("{P} made a game of everything.", "{P} jumped into every puddle."),
    "dreamy": ("{P} looked at the sky and forgot the time.", "{P} dreamed even in the middle of the day."),
    "polite": ("{P} never forgot to say please.", "{P} bowed to everyone on the road."),
    "young": ("{P} still had a lot to learn.", "{P} had never been far from home."),
    "old": ("{P} had seen a hundred winters.", "{P} walked slowly and remembered everything."),
    "lucky": ("{P} found a coin almost every day.", "{P} always won at games."),
    "noisy": ("{P} could not be quiet for one minute.", "{P} beat {s} drum all day."),
    "messy": ("{P} could never find {s} shoes.", "{P} left crumbs everywhere."),
    "forgetful": ("{P} often forgot what day it was.", "{P} wrote everything on little notes."),
    "nervous": ("{P} jumped at every sound.", "{P} worried about everything."),
    "loyal": ("{P} never left a friend alone.", "{P} kept every promise."),
    "hopeful": ("{P} believed that tomorrow would be better.", "{P} never gave up."),
    "greedy": ("{P} wanted to keep everything.", "{P} did not like to share."),
    "fast": ("{P} could run like the wind.", "{P} was always the first to arrive."),
    "slow": ("{P} took a long time for everything.", "{P} was always the last to arrive."),
    "strong": ("{P} could lift a heavy stone.", "{P} carried wood for the whole village."),
}
HABITS = ("{P} liked to walk in the sun.", "{P} had many plans.")  # of other traits
FEELINGS = (
    "{N} felt sad and sat down under a tree.",
    "{N} did not know what to do.",
    "{N} sighed and sat down on a stone.",
    "{N} almost began to cry.",
    "{N} tried again and again, but nothing helped.",
    "{N} wanted to give up.",
)
TIMES = (
    "One day",
    "One morning",
    "One evening",
    "One spring day",
    "One cold morning",
    "One warm night",
    "On a rainy day",
)
JOYS = (
    "{P} was so happy that {p} danced.",
    "{P} smiled from ear to ear.",
    "{P} laughed with joy.",
    "{P} could hardly believe it.",
    "{P} jumped high into the air.",
    "{s} heart was full of joy.",
)
FRIENDSHIPS = (
    "{N} and the {H} were best friends",
    "{N} and the {H} met every day",
    "{N} visited the {H} every week",
    "{N} and the {H} shared everything",
    "{N} and the {H} played together every evening",
    "{N} never went on a journey without the {H}",
)
