"""What the guide knows is a list of topics; a topic is a few questions, each with one answer and its key facts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """`cores`: the question in several words, see `what` and `ask`. `facts`: what an answer must say, word for word."""

    kind: str  # what, why, how, when, ...
    cores: tuple[str, ...]
    answer: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """Questions in the order in which a guide tells them: "Tell me more." leads to the next."""

    name: str  # after "about"
    questions: tuple[Question, ...]


def topic(name: str, *questions: Question) -> Topic:
    return Topic(name, questions)


def what(*cores: str, say: str, facts: tuple[str, ...]) -> Question:
    """What something is. Cores are noun phrases, a plural one marked by a star: "a block", "*blocks"."""
    return Question("what", cores, say, facts)


def ask(*cores: str, say: str, facts: tuple[str, ...]) -> Question:
    """Any other question. Cores are "word|auxiliary|subject|rest", as "why|are|blocks|small"; after do and does the
    verb stands in both forms: "how|does|the engine|find/finds|a block". Where word order stays, the auxiliary is "=":
    "which block|=|is evicted first|". No word: a question for yes or no."""
    return Question(cores[0].split("|")[0].split(" ")[0] or "whether", cores, say, facts)
