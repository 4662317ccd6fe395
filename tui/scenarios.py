"""Background loads: preset requests that share prefixes, differ in length and compete for blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SYSTEM = (
    "You are a careful assistant inside a small engine. Answer in plain words, say how sure you are, and keep to what "
    "was asked. Never invent a source. If a question has several readings, take the likeliest and say so."
)

QUESTIONS = (
    "Write a limerick about GPUs.",
    "Explain in three sentences why a queue grows when work arrives faster than it leaves.",
    "Compare least recently used and least frequently used eviction.",
    "As a haiku: the sea at night.",
    "List five uses for a paperclip, one per line, and repeat the list backwards.",
    "What is a block table? Explain it to a child.",
    "Count from one to forty in words.",
    "Summarise the plot of a story you know in four sentences.",
)

LONG = " ".join(
    f"Note {i}: a request holds {i % 7 + 2} blocks, waits {i % 5} steps and shares {i % 3} prefixes." for i in range(30)
)


@dataclass(frozen=True, slots=True)
class Ask:
    messages: tuple[dict[str, str], ...]
    max_tokens: int
    priority: int = 0


def background(count: int, first: int = 0) -> Iterator[Ask]:
    """`count` requests: most share a system prompt, every fourth is long, every fifth has a lower priority.

    `first`: how many were started before, so that a second load is not all cache hits.
    """
    for i in range(first, first + count):
        question = QUESTIONS[i % len(QUESTIONS)]
        if i % 4 == 3:
            question = f"Summarise, then answer: {LONG}\n{question} ({i})"
        elif i >= len(QUESTIONS):
            question = f"{question} ({i})"
        system = ({"role": "system", "content": SYSTEM},) if i % 3 != 2 else ()
        yield Ask((*system, {"role": "user", "content": question}), 60 + 20 * (i % 4), 5 if i % 5 == 4 else 0)
