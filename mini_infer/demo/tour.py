"""The guide: every question in many words, and whether an answer says what it should and nothing else."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from mini_infer.demo.draw import held_out, pick, sentence
from mini_infer.demo.questions import Question, Topic
from mini_infer.demo.tour_app import APP
from mini_infer.demo.tour_cache import CACHE
from mini_infer.demo.tour_measure import MEASURE
from mini_infer.demo.tour_model import MODEL
from mini_infer.demo.tour_schedule import SCHEDULE
from mini_infer.demo.tour_speculation import SPECULATION

TOPICS: tuple[Topic, ...] = (*CACHE, *SCHEDULE, *SPECULATION, *MEASURE, *MODEL, *APP)
QUESTIONS: tuple[Question, ...] = tuple(question for topic in TOPICS for question in topic.questions)
STARTS = tuple((topic, i) for topic in TOPICS for i in range(len(topic.questions)))

WHAT_WORDINGS = (  # {x} "a block", {is x} "is a block", {x is} "a block is"
    "What {is x}?",
    "Explain {x}.",
    "Tell me about {x}.",
    "Can you explain {x}?",
    "Please explain {x}.",
    "What {is x} here?",
    "I want to know what {x is}.",
    "Tell me what {x is}.",
    "Do you know what {x is}?",
    "Describe {x}.",
    "Please tell me what {x is}.",
    "Could you explain what {x is}?",
    "What do you mean by {x}?",
    "I do not know what {x is}.",
    "Explain to me what {x is}.",
    "So what {is x}?",
    "What exactly {is x}?",
    "{x}?",
    "Help me to understand {x}.",
)
ASK_WORDINGS = (  # {direct} "why are blocks small", {indirect} "why blocks are small"
    "{direct}?",
    "Tell me {indirect}.",
    "Can you explain {indirect}?",
    "Please explain {indirect}.",
    "Explain {indirect}.",
    "I want to know {indirect}.",
    "Do you know {indirect}?",
    "Please tell me {indirect}.",
    "Could you tell me {indirect}?",
    "I wonder {indirect}.",
    "So {direct}?",
    "I do not understand {indirect}.",
    "Explain to me {indirect}.",
    "And {direct}?",
)
GREETINGS = ("Hello. ", "Hi, ", "Please, ", "Ok. ", "One more question: ", "Now ")
MORE = ("Tell me more.", "Go on.", "More, please.", "What else?", "Can you tell me more?", "And what else?")
FOLLOW_UPS = {
    "why": ("Why?", "Why is that?", "But why?", "Why so?", "And why?"),
    "how": ("How?", "How does that work?", "And how?", "How does it work?", "How so?"),
}
BARE = "{x}?"


def direct(core: str) -> str:
    """ "why|are|blocks|small" as a question of its own, without the mark."""
    word, auxiliary, subject, *rest = core.split("|")
    verbs = [part.split("/")[0] for part in rest]
    return " ".join(part for part in (word, "" if auxiliary == "=" else auxiliary, subject, *verbs) if part)


def indirect(core: str) -> str:
    """The same inside a sentence: "why blocks are small"; yes or no becomes "whether"."""
    word, auxiliary, subject, *rest = core.split("|")
    word = word or "whether"
    if auxiliary == "=":
        parts = [word, subject, *rest]
    elif auxiliary in ("do", "does"):
        parts = [word, subject, *(part.split("/")[-1] for part in rest)]
    elif auxiliary == "did":
        past = {"miss": "missed", "stop": "stopped"}
        parts = [word, subject, *(past[part] for part in rest)]
    else:
        parts = [word, subject, auxiliary, *rest]
    return " ".join(part for part in parts if part)


def wordings(question: Question) -> Iterator[tuple[str, str, str]]:
    """(core, frame, text) of every way to ask it."""
    for core in question.cores:
        if question.kind == "what" and "|" not in core:
            noun = core.lstrip("*")
            verb = "are" if core.startswith("*") else "is"
            slots = {"x": noun, "is x": f"{verb} {noun}", "x is": f"{noun} {verb}"}
            for frame in WHAT_WORDINGS:
                yield core, frame, sentence(frame.format_map(slots))
        else:
            slots = {"direct": direct(core), "indirect": indirect(core)}
            for frame in ASK_WORDINGS:
                yield core, frame, sentence(frame.format_map(slots))


@functools.cache
def ways(question: Question, unseen: bool) -> tuple[str, ...]:
    """The wordings that training sees, or those it never sees (about one in six).

    A bare noun, and the question as its author wrote it, are always seen: they are the base of all others.
    """
    always = (BARE, WHAT_WORDINGS[0], ASK_WORDINGS[0])
    return tuple(
        text
        for core, frame, text in wordings(question)
        if unseen == (frame not in always and held_out("tour", core, frame, one_in=6))
    )


def word_question(rng: random.Random, question: Question, *, unseen: bool = False) -> str:
    """One of its wordings; those of training are sometimes written carelessly."""
    text = pick(rng, ways(question, unseen), 0.0)
    if unseen:
        return text
    if rng.random() < 0.12:
        text = rng.choice(GREETINGS) + text[0].lower() + text[1:] if not text[:2].isupper() else text
    if rng.random() < 0.12:
        text = text.lower()
    if rng.random() < 0.12:
        text = text.rstrip(".?")
    return text


@dataclass(frozen=True, slots=True)
class Turn:
    asked: str
    answer: str


def dialogue(rng: random.Random, turns: int) -> Iterator[Turn]:
    """A question, then follow-ups that only make sense after it."""
    topic, told = rng.choice(STARTS)
    yield Turn(word_question(rng, topic.questions[told]), topic.questions[told].answer)
    for _ in range(turns - 1):
        later = topic.questions[told + 1 :]
        if not later:
            following = TOPICS[(TOPICS.index(topic) + 1) % len(TOPICS)]
            yield Turn(
                rng.choice(MORE), f"That is all I know about {topic.name}. You could ask me about {following.name}."
            )
            return
        words = FOLLOW_UPS.get(later[0].kind, MORE)
        yield Turn(rng.choice(words if rng.random() < 0.6 else MORE), later[0].answer)
        told += 1


def misses(question: Question, answer: str) -> list[str]:
    """What is wrong with an answer: key facts it does not hold, and key facts of other questions that it does."""
    found = answer.lower()
    lacking = [f"lacks: {fact}" for fact in question.facts if fact not in found]
    own = question.answer.lower()
    foreign = {fact for other in QUESTIONS for fact in other.facts if fact in found and fact not in own}
    return lacking + [f"belongs elsewhere: {fact}" for fact in sorted(foreign)]
