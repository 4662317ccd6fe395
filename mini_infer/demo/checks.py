"""What makes an answer good, by rule: no opinion, no second model."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from mini_infer.demo import plots, stories
from mini_infer.demo import words as tables
from mini_infer.demo.draw import words
from mini_infer.demo.questions import Question
from mini_infer.demo.stories import HE, SHE, Story, gender_of, most_repeated
from mini_infer.demo.tour import QUESTIONS, TOPICS, misses

PRONOUNS = {SHE: {"she", "her", "hers", "herself"}, HE: {"he", "him", "his", "himself"}}
NAMES = frozenset(tables.FEMALE_NAMES + tables.MALE_NAMES)


def _texts(value: Any) -> Iterator[str]:
    """All strings in nested tables."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (*_texts(key), *_texts(item))
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, plots.Obstacle):
        yield from (value.past, value.now, *_texts(value.solutions))


@functools.cache
def story_lexicon() -> frozenset[str]:
    """Every word that a story can hold."""
    requests = (*stories.REQUESTS, *stories.OPEN_REQUESTS)
    found = {"a", "an", "the", "she", "her", "he", "his", "find", "found", "see", "saw", "bring", "brought", "to"}
    found |= {"learn", "learned"}
    for module in (tables, plots, stories):
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, (tuple, dict)):
                for text in _texts(value):
                    if text not in requests:
                        found.update(words(re.sub(r"\{[^}]*\}", " ", text)))
    return frozenset(found)


@functools.cache
def tour_lexicon() -> frozenset[str]:
    """Every word of the guide's answers."""
    texts = [question.answer for question in QUESTIONS] + [topic.name for topic in TOPICS]
    return frozenset(word for text in texts for word in words(text))


def story_faults(story: Story, text: str, finish_reason: str | None) -> list[str]:
    """What is wrong with a story that answers `story.request`; nothing if it passes."""
    found = words(text)
    faults = [] if finish_reason == "stop" else [f"ended by {finish_reason}"]
    if not 60 <= len(found) <= 200:
        faults.append(f"{len(found)} words")
    if (count := most_repeated(text)) >= 3:
        faults.append(f"five words in a row {count} times")
    strange = sorted(set(found) - story_lexicon() - set(words(story.request)))
    if strange:
        faults.append(f"not in the lexicon: {', '.join(strange)}")
    return faults + _character_faults(story, text, found)


def _character_faults(story: Story, text: str, found: list[str]) -> list[str]:
    faults = [f"{asked} appears too seldom" for asked in story.asked if found.count(asked.lower()) < 2]
    named = re.findall(r"\b(?:named|called) ([A-Z]\w*)", text)
    asked_names = [asked for asked in story.asked if asked[0].isupper()]
    heroes = set(named)
    if not heroes or not heroes >= set(asked_names):
        faults.append("the hero has no name, or not the one asked for")
    strangers = {name for name in re.findall(r"[A-Z]\w*", text) if name in NAMES} - heroes
    if strangers:
        faults.append(f"nobody introduced {', '.join(sorted(strangers))}")
    first = story.asked[0] if story.asked else ""
    if first and not re.search(rf"\b{first} (?:named|called) ", text):
        faults.append(f"the hero is no {first}")
    if len(named) == 1 and (gender := gender_of(named[0])):
        wrong = PRONOUNS[HE if gender == SHE else SHE] & set(found)
    elif len(named) > 1:
        wrong = (PRONOUNS[HE] | PRONOUNS[SHE]) & set(found)
    else:
        wrong = set() if not (PRONOUNS[HE] & set(found) and PRONOUNS[SHE] & set(found)) else {"both she and he"}
    if wrong:
        faults.append(f"pronoun changes: {', '.join(sorted(wrong))}")
    return faults


def tour_faults(question: Question, text: str, finish_reason: str | None) -> list[str]:
    """What is wrong with an answer of the guide; nothing if it passes."""
    faults = [] if finish_reason == "stop" else [f"ended by {finish_reason}"]
    strange = sorted(set(words(text)) - tour_lexicon())
    if strange:
        faults.append(f"not in the lexicon: {', '.join(strange)}")
    if most_repeated(text) >= 3:
        faults.append("five words in a row three times")
    return faults + misses(question, text)
