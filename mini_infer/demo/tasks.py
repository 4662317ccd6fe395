"""Tasks whose answers repeat their prompts: copying, lists, simple edits. Prompt lookup shines here."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

from mini_infer.demo.draw import joined, made_up, pick, sentence
from mini_infer.demo.plots import GIFTS, THING_ADJECTIVES, THINGS
from mini_infer.demo.stories import make_story
from mini_infer.demo.tour import QUESTIONS, Turn
from mini_infer.demo.words import ANIMALS, FEMALE_NAMES, MALE_NAMES, SPECIES

FOODS = tuple("apples bread milk honey cheese eggs butter soup rice beans pears plums nuts tea salt flour corn".split())
COLORS = tuple("red blue green yellow white black brown orange purple pink gray golden silver".split())
PAIRS = ("big small", "old young", "happy sad", "dark bright", "wide narrow", "warm cold", "quiet noisy", "long short")

COPY = (
    "Repeat this: {x}",
    "Copy this text: {x}",
    "Write this again: {x}",
    "Say exactly this: {x}",
    "Repeat after me: {x}",
    "Please copy: {x}",
    "Copy the following text:\n\n{x}",
    "Echo: {x}",
    "Say: {x}",
)
LIST = (
    "Write this as a list: {x}",
    "Make a list of {x}.",
    "Put these on separate lines: {x}",
    "List these: {x}",
    "Turn this into a list: {x}",
    "Write a list with {x}.",
)
NUMBER = ("Number these: {x}", "Make a numbered list of {x}.", "Write this as a numbered list: {x}", "Count these: {x}")
REMOVE = ("Remove {y} from this list: {x}", "Take {y} out of this list: {x}", "Delete {y} from: {x}")
ADD = ("Add {y} to this list: {x}", "Put {y} at the end of this list: {x}", "Append {y} to: {x}")
REPLACE = (
    "Replace {y} with {z} in this text: {x}",
    "Change {y} to {z}: {x}",
    "Write {z} instead of {y}: {x}",
    "Replace every {y} with {z}:\n\n{x}",
)
FIRST = ("What is the first word of this list: {x}", "Which one is first: {x}", "Name the first one: {x}")
LAST = ("What is the last word of this list: {x}", "Which one is last: {x}", "Name the last one: {x}")
TWICE = ("Say {x} two times.", "Write {x} twice.", "Repeat {x} two times.")
AGAIN = ("Again, please.", "Once more.", "Repeat that.", "Say that again.", "Can you repeat that?")
NOW_NUMBER = ("Now number them.", "Make it a numbered list.", "Number the list.")
NOW_LINE = ("Now write it in one line.", "Put them in one line.", "Now with commas, please.")
NOW_ADD = ("Now add {y}.", "Add {y}.", "Put {y} at the end.")


def bullets(items: list[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def numbered(items: list[str]) -> str:
    return "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))


def _items(rng: random.Random, least: int = 2, most: int = 7) -> list[str]:
    source = rng.choice((ANIMALS, THINGS, FOODS, COLORS, FEMALE_NAMES + MALE_NAMES, SPECIES, GIFTS))
    items = rng.sample(source, min(rng.randint(least, most), len(source)))
    if rng.random() < 0.2:
        items = [f"{rng.choice(THING_ADJECTIVES)} {item}" if item in THINGS else item for item in items]
    if rng.random() < 0.25:
        items[rng.randrange(len(items))] = made_up(rng)
    return items


def _text(rng: random.Random) -> str:
    """A few sentences, or a few loose words."""
    kind = rng.random()
    if kind < 0.15:
        return " ".join(rng.sample(SPECIES + THINGS + FOODS + COLORS, rng.randint(3, 8)))
    if kind < 0.25:
        return " ".join(made_up(rng) for _ in range(rng.randint(1, 4)))
    if kind < 0.45:
        return rng.choice(QUESTIONS).answer
    told = re.split(r"(?<=[.?!\"])\s+(?=[A-Z\"])", make_story(rng).text)
    start = rng.randrange(max(len(told) - 3, 1))
    return " ".join(told[start : start + rng.randint(1, 5)])


def copy(rng: random.Random) -> Iterator[Turn]:
    text = _text(rng)
    yield Turn(pick(rng, COPY, 0.3).format(x=text), text)
    if rng.random() < 0.2:
        yield Turn(rng.choice(AGAIN), text)


def lists(rng: random.Random) -> Iterator[Turn]:
    items = _items(rng)
    given = joined(items) if rng.random() < 0.6 else ", ".join(items)
    if rng.random() < 0.6:
        yield Turn(pick(rng, LIST, 0.3).format(x=given), bullets(items))
    else:
        yield Turn(pick(rng, NUMBER, 0.3).format(x=given), numbered(items))
    if rng.random() < 0.5:
        follow = rng.choice(("number", "line", "add"))
        if follow == "number":
            yield Turn(rng.choice(NOW_NUMBER), numbered(items))
        elif follow == "line":
            yield Turn(rng.choice(NOW_LINE), ", ".join(items))
        else:
            new = rng.choice(_items(rng))
            yield Turn(rng.choice(NOW_ADD).format(y=new), bullets([*items, new]))


def edit_list(rng: random.Random) -> Iterator[Turn]:
    items = _items(rng, 3)
    x = ", ".join(items)
    kind = rng.choice(("remove", "add", "first", "last"))
    if kind == "remove":
        gone = rng.choice(items)
        left = [item for item in items if item != gone]
        yield Turn(rng.choice(REMOVE).format(x=x, y=gone), ", ".join(left))
    elif kind == "add":
        new = rng.choice(_items(rng))
        yield Turn(rng.choice(ADD).format(x=x, y=new), ", ".join([*items, new]))
    else:
        frames, index = (FIRST, 0) if kind == "first" else (LAST, -1)
        yield Turn(rng.choice(frames).format(x=x), f"{sentence(items[index])}.")


def replace(rng: random.Random) -> Iterator[Turn]:
    old, new = rng.sample(ANIMALS, 2) if rng.random() < 0.7 else pick(rng, PAIRS).split()
    while True:
        text = _text(rng)
        shared = sorted(set(re.findall(r"\b[a-z]{3,}\b", text)) & set(SPECIES + THINGS))
        if shared:
            old = rng.choice(shared)
            break
        if rng.random() < 0.3:
            text = f"The {old} is here. Look at the {old}, {rng.choice(MALE_NAMES)}!"
            break
    new = new if new != old else "turtle"
    yield Turn(pick(rng, REPLACE, 0.3).format(x=text, y=old, z=new), re.sub(rf"\b{old}\b", new, text))


def twice(rng: random.Random) -> Iterator[Turn]:
    text = rng.choice((made_up(rng), rng.choice(SPECIES), rng.choice(THINGS), "hello", rng.choice(FEMALE_NAMES)))
    yield Turn(rng.choice(TWICE).format(x=text), f"{text} {text}")


KINDS: tuple[Callable[[random.Random], Iterator[Turn]], ...] = (copy, lists, replace, edit_list, twice)


def make_task(rng: random.Random) -> list[Turn]:
    """A task, sometimes with a second one about its result."""
    return list(pick(rng, KINDS, 0.6)(rng))
