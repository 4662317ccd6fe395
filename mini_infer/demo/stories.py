"""Short stories from a grammar: someone wants something, something is in the way, a friend helps.

Names fix pronouns, only the hero of a story for one is a "she" or "he", and two heroes are "they", so that a reader
(and a rule) can tell whether a story keeps to its characters.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from mini_infer.demo.draw import article, held_out, made_up, pick, sentence, words
from mini_infer.demo.plots import (
    CRAFTS,
    GIFTS,
    MORALS,
    OBSTACLES,
    RECEIVERS,
    SIGHTS,
    SKILLS,
    THING_ADJECTIVES,
    THINGS,
    Wish,
)
from mini_infer.demo.words import (
    FEELINGS,
    FEMALE_NAMES,
    FRIENDSHIPS,
    HABITS,
    JOYS,
    MALE_NAMES,
    MEN,
    PLACE_ADJECTIVES,
    PLACES,
    SPECIES,
    TIMES,
    TRAITS,
    WOMEN,
)

SHE, HE = ("she", "her"), ("he", "his")
HELPER_TRAITS = ("kind", "wise", "friendly", "old", "clever", "cheerful", "gentle", "little", "patient", "young")

INTROS = (
    "Once upon a time, {a T S} named {N} lived {place}.",
    "There was once {a T S} named {N} who lived {place}.",
    "Once there was {a T S} called {N}, and {p} lived {place}.",
    "Long ago, {a T S} called {N} lived {place}.",
)
WISHES = (
    "{time}, {N} the {S} wanted to {want}.",
    "{time}, the {S} made a wish: {p} wanted to {want}.",
    "More than anything, the {T} {S} wanted to {want}.",
    "{time}, the {S} decided to {want}.",
)
TROUBLES = ("But {past}.", "However, {past}.")
MEETINGS = (
    "Just then, {a HT H} came along.",
    "Then {N} met {a HT H}.",
    "{a HT H} heard this and came closer.",
    "Soon {a HT H} passed by.",
)
TALKS = (
    '"Why are you so sad?" asked the {H}. "I want to {want}, but {now}," said {N}.',
    '"What is wrong?" asked the {H}. "{Now}," said {N}.',
    '"Can I help you?" asked the {H}. "I want to {want}," said {N}, "but {now}."',
    '"Hello," said the {H}. "You look worried." "{Now}," answered the {S}.',
)
OFFERS = (
    '"Do not worry," said the {H}. "I will help you."',
    '"I have an idea," said the {H}.',
    '"Let us try it together," said the {H}.',
    '"That is easy," said the {H} with a smile.',
)
SOLUTIONS = (
    "The {H} {act}, and together they {both}.",
    "The {H} {act}. Then they {both}.",
    "So the {H} {act}, and the two of them {both}.",
)
SUCCESSES = (
    "At last, the {S} {done}.",
    "In the end, {N} the {S} {done}.",
    "And so the {S} {done}.",
    "Before long, the {T} {S} {done}.",
)
THANKS = (
    '"Thank you," said {N}. "You are a true friend."',
    '"I could not have done it without you," said {N}.',
    "{N} thanked the {H} with all {s} heart.",
    '"How can I thank you?" asked {N}. "Be my friend," said the {H}.',
)
ENDS = (
    "From that day on, {friends}, and {N} never forgot that {moral}.",
    "{N} learned that {moral}. From that day on, {friends}.",
    "From that day on, {friends}. And the {T} {S} knew that {moral}.",
)
DUO_INTROS = (
    "Once upon a time, {a T S} named {N} and {a HT H} named {M} lived {place}.",
    "There was once {a T S} named {N} who lived {place} with {a HT H} named {M}.",
    "Long ago, {a T S} called {N} and {a HT H} called {M} lived {place}.",
)
DUO_BONDS = (
    "{N} the {S} and {M} the {H} were best friends.",
    "The {S} and the {H} were as different as day and night, but they were good friends.",
    "Everyone knew {N} the {S} and {M} the {H}.",
)
DUO_WISHES = ("{time}, they wanted to {want}.", "{time}, {N} and {M} decided to {want}.")
DUO_TALKS = (
    '"What shall we do now?" asked {N}. "I have an idea," said {M}.',
    '"This is the end of our plan," said {N}. "Not yet," said {M} the {H}.',
    '"I want to go home," said {N}. "Do not give up," answered the {H}.',
)
DUO_SOLUTIONS = ("{M} {act}, and together they {both}.", "{M} the {H} {act}. Then the two friends {both}.")
DUO_SUCCESSES = ("At last, they {done}.", "In the end, {N} and {M} {done}.", "And so the {S} and the {H} {done}.")
DUO_JOYS = ("{N} danced, and {M} sang a song.", "{N} laughed, and {M} clapped with joy.", "They were very proud.")
DUO_THANKS = (
    '"We are a good team," said {N} the {S}.',
    '"Thank you, my friend," said {N} to {M}.',
    '"I am glad that you are my friend," said the {S} to the {H}.',
)
DUO_ENDS = (
    "From that day on, they knew that {moral}.",
    "{N} and {M} learned that {moral}, and they stayed friends forever.",
    "And from that day on, {N} and {M} told everyone that {moral}.",
)

REQUESTS = (
    "Tell me a story about {x}.",
    "Write a story about {x}.",
    "Tell me a short story about {x}.",
    "Can you tell me a story about {x}?",
    "Please tell me a story about {x}.",
    "Write a short story about {x}.",
    "I would like a story about {x}.",
    "A story about {x}, please.",
    "Could you write a story about {x}?",
    "Tell us about {x}.",
    "I want to hear a story about {x}.",
    "Make up a story about {x}.",
    "Tell me a bedtime story about {x}.",
    "Give me a story about {x}.",
    "Do you know a story about {x}?",
    "Once upon a time there was {x}. Go on.",
    "Please write a little story about {x}.",
    "Tell me a fairy tale about {x}.",
    "tell me a story about {x}",
    "story about {x}",
    "Let me hear a tale about {x}.",
    "I wish to read a story about {x}.",
)
OPEN_REQUESTS = (
    "Tell me a story.",
    "Tell me a short story.",
    "Can you tell me a story?",
    "Write a story.",
    "I would like to hear a story.",
    "A story, please.",
    "Please tell me a bedtime story.",
    "tell me a story",
    "Make up a story for me.",
    "Do you know a story?",
    "Write me something nice.",
    "Surprise me with a story.",
)


@dataclass(frozen=True, slots=True)
class Story:
    request: str
    text: str
    asked: tuple[str, ...]  # species and names that the request names
    questions: tuple[tuple[str, str], ...] = ()  # about the story, with their answers


def make_story(rng: random.Random, *, unseen: bool = False, named: bool = False) -> Story:
    """One story with a request that fits it.

    `unseen`: of a trait and a species that never meet in training, both asked for. `named`: the request has a subject.
    """
    while True:
        story = _duo(rng, unseen) if rng.random() < 0.15 else _solo(rng, unseen, named or unseen)
        if most_repeated(story.text) < 3 and 60 <= len(words(story.text)) <= 200:
            return story


def most_repeated(text: str, n: int = 5) -> int:
    """How often the most frequent run of `n` words occurs."""
    found = words(text)
    runs = Counter(zip(*(found[i:] for i in range(n)), strict=False))
    return max(runs.values(), default=0)


def gender_of(name: str) -> tuple[str, str] | None:
    """(she, her) or (he, his) of a name of the stories; None for a name they do not know."""
    return SHE if name in FEMALE_NAMES else HE if name in MALE_NAMES else None


def _hero(rng: random.Random, unseen: bool) -> tuple[str, str]:
    """A trait and a species, both asked for if `unseen`. Rarely one of them is a word that nobody knows."""
    trait, species = pick(rng, tuple(TRAITS), 0.3), pick(rng, SPECIES, 0.4)
    if unseen:
        return (trait, species) if held_out(trait, species) else _hero(rng, unseen)
    draw = rng.random()
    if draw < 0.03:
        return trait, made_up(rng)
    if draw < 0.05:
        return made_up(rng), species
    return _hero(rng, unseen) if held_out(trait, species) else (trait, species)


def _helper(rng: random.Random) -> tuple[str, str]:
    return pick(rng, HELPER_TRAITS), pick(rng, SPECIES, 0.4)


def _name(rng: random.Random, species: str, asked: bool, unseen: bool) -> tuple[str, tuple[str, str]]:
    """A name and its pronouns; one that nobody knows only if the request gives it."""
    female = species in WOMEN or (species not in MEN and rng.random() < 0.5)
    if asked and not unseen and rng.random() < 0.15:
        return (made_up(rng) + ("a" if female else "o")).title(), SHE if female else HE
    return (pick(rng, FEMALE_NAMES, 0.5), SHE) if female else (pick(rng, MALE_NAMES, 0.5), HE)


def _place(rng: random.Random) -> str:
    preposition, noun = pick(rng, PLACES)
    return f"{preposition} {article(f'{pick(rng, PLACE_ADJECTIVES)} {noun}')}"


def _wish(rng: random.Random) -> Wish:
    kind = pick(rng, ("find", "craft", "skill", "see", "bring"), 0.5)
    if kind == "find":
        thing = f"{pick(rng, THING_ADJECTIVES)} {pick(rng, THINGS)}"
        return Wish("journey", f"find {article(thing)}", f"found the {thing}")
    if kind == "see":
        sight = pick(rng, SIGHTS)
        return Wish("journey", f"see {sight}", f"saw {sight}")
    if kind == "bring":
        gift, receiver = pick(rng, GIFTS), pick(rng, RECEIVERS)
        return Wish("journey", f"bring {gift} to {receiver}", f"brought {gift} to {receiver}")
    if kind == "craft":
        return Wish("craft", *pick(rng, CRAFTS))
    skill = pick(rng, SKILLS)
    return Wish("skill", f"learn to {skill}", f"learned to {skill}")


def _tell(rng: random.Random, frames: list[tuple[str, ...]], slots: dict[str, str]) -> str:
    """A sentence from each list of frames, the slots filled."""
    told = (pick(rng, options).format_map(slots) for options in frames)
    return " ".join(sentence(text) for text in told)


def _solo(rng: random.Random, unseen: bool, named: bool) -> Story:
    trait, species = _hero(rng, unseen)
    asks_name = rng.random() < 0.25
    name, (she, her) = _name(rng, species, asks_name, unseen)
    place, wish = _place(rng), _wish(rng)
    obstacle = pick(rng, OBSTACLES[wish.family])
    act, both = pick(rng, obstacle.solutions)
    helper_trait, helper = _helper(rng)
    if helper == species:
        return _solo(rng, unseen, named)
    slots = {
        "N": name,
        "S": species,
        "T": trait,
        "p": she,
        "P": sentence(she),
        "s": her,
        "a T S": article(f"{trait} {species}"),
        "a HT H": article(f"{helper_trait} {helper}"),
        "H": helper,
        "place": place,
        "time": pick(rng, TIMES),
        "want": wish.want,
        "done": wish.done,
        "past": obstacle.past,
        "now": obstacle.now,
        "Now": sentence(obstacle.now),
        "act": act,
        "both": both,
        "moral": pick(rng, MORALS[wish.family]),
    }
    slots["friends"] = pick(rng, FRIENDSHIPS).format_map(slots)
    text = "\n\n".join(
        (
            _tell(rng, [INTROS, TRAITS.get(trait, HABITS), WISHES], slots),
            _tell(rng, [TROUBLES, FEELINGS, MEETINGS, TALKS, OFFERS], slots),
            _tell(rng, [SOLUTIONS, SUCCESSES, JOYS, THANKS, ENDS], slots),
        )
    )
    questions = (
        (f"What was the name of the {species}?", f"The name of the {species} was {name}."),
        (f"Where did {name} live?", f"{name} lived {place}."),
        (f"Who helped {name}?", f"{sentence(slots['a HT H'])} helped {name}."),
        (f"What did {name} want?", f"{name} wanted to {wish.want}."),
        (f"What did {name} learn?", f"{name} learned that {slots['moral']}."),
    )
    plain = species in SPECIES and trait in TRAITS and not asks_name
    if plain and not named and rng.random() < 0.12:
        return Story(rng.choice(OPEN_REQUESTS), text, (), questions)
    subject, asked = species, [species]
    if unseen or trait not in TRAITS or rng.random() < 0.75:
        subject = f"{trait} {species}"
    subject = article(subject)
    if asks_name:
        subject += f" {rng.choice(('named', 'called'))} {name}"
        asked.append(name)
    more = rng.random()
    if more < 0.1:
        subject += f" {place}"
    elif more < 0.2:
        subject += f" who wants to {wish.want}"
    elif more < 0.28:
        subject += f" who meets {article(helper)}"
        asked.append(helper)
    return Story(pick(rng, REQUESTS, 0.4).format(x=subject), text, tuple(asked), questions)


def _duo(rng: random.Random, unseen: bool) -> Story:
    (trait, species), (other_trait, other) = _hero(rng, unseen), _helper(rng)
    asks_names = rng.random() < 0.2
    (name, _), (friend, _) = (_name(rng, kind, asks_names, unseen) for kind in (species, other))
    if other == species or friend == name:
        return _duo(rng, unseen)
    wish = _wish(rng)
    obstacle = pick(rng, OBSTACLES[wish.family])
    act, both = pick(rng, obstacle.solutions)
    slots = {
        "N": name,
        "M": friend,
        "S": species,
        "H": other,
        "a T S": article(f"{trait} {species}"),
        "a HT H": article(f"{other_trait} {other}"),
        "place": _place(rng),
        "time": pick(rng, TIMES),
        "want": wish.want,
        "done": wish.done,
        "past": obstacle.past,
        "act": act,
        "both": both,
        "moral": pick(rng, MORALS[wish.family]),
    }
    text = "\n\n".join(
        (
            _tell(rng, [DUO_INTROS, DUO_BONDS, DUO_WISHES], slots),
            _tell(rng, [TROUBLES, DUO_TALKS, DUO_SOLUTIONS], slots),
            _tell(rng, [DUO_SUCCESSES, DUO_JOYS, DUO_THANKS, DUO_ENDS], slots),
        )
    )
    first, second, asked = article(species), article(other), [species, other]
    if unseen or trait not in TRAITS or rng.random() < 0.4:
        first = article(f"{trait} {species}")
        if rng.random() < 0.5:
            second = article(f"{other_trait} {other}")
    if asks_names:
        first, second, asked = f"{first} named {name}", f"{second} named {friend}", [*asked, name, friend]
    return Story(pick(rng, REQUESTS, 0.4).format(x=f"{first} and {second}"), text, tuple(asked))
