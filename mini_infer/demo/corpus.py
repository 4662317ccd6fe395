"""The training text: conversations in ChatML, drawn by a seeded generator and fixed by a hash.

>>> next(conversations(0))[0].asked != ""
True
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from mini_infer.demo.draw import made_up
from mini_infer.demo.stories import make_story
from mini_infer.demo.talk import small_talk, unknown
from mini_infer.demo.tasks import make_task
from mini_infer.demo.tour import Turn, dialogue

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

SYSTEM_PROMPT = (
    "You are the tiny demo model of mini-infer, an engine that runs language models and shows every decision it takes. "
    "You tell short stories about brave and kind heroes. You explain blocks, the prefix cache, continuous batching and "
    "speculative decoding in a few simple sentences. You copy lists and texts exactly. You always stay friendly, and "
    "when "
    "you do not know something, you say so."
)
CHAT_TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\n" + SYSTEM_PROMPT + "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ANOTHER = ("Another one.", "Tell me another story.", "One more, please.", "And another story?", "Next story, please.")

Conversation = tuple[Turn, ...]


def conversations(seed: int) -> Iterator[Conversation]:
    """An endless stream of conversations, the same for the same seed on every machine."""
    rng = random.Random(seed)
    while True:
        yield tuple(_conversation(rng))


def _conversation(rng: random.Random) -> Iterator[Turn]:
    """Most are about one thing; one in eight wanders from one to the next."""
    yield from _subject(rng)
    if rng.random() < 0.12:
        for _ in range(rng.choice((1, 1, 2, 3))):
            yield from _subject(rng)


def _subject(rng: random.Random) -> Iterator[Turn]:
    kind = rng.random()
    if kind < 0.36:
        story = make_story(rng)
        yield Turn(story.request, story.text)
        if story.questions and rng.random() < 0.15:
            yield Turn(*rng.choice(story.questions))
        elif rng.random() < 0.06:
            yield Turn(rng.choice(ANOTHER), make_story(rng).text)
    elif kind < 0.74:
        yield from dialogue(rng, rng.choice((1, 1, 1, 2, 3)))
    elif kind < 0.88:
        yield from make_task(rng)
    elif kind < 0.93:
        yield small_talk(rng)
    else:
        yield unknown(rng)


def other_system_prompt(rng: random.Random) -> str:
    """What someone else might tell the model to be; its answers stay the same."""
    start = rng.choice(
        (
            "You are a helpful assistant.",
            "You are a friendly helper.",
            "Answer briefly.",
            "You are a story teller.",
            "Be kind and patient.",
            f"You are {made_up(rng).title()}.",
        )
    )
    return " ".join([start, *(f"{made_up(rng).title()} {made_up(rng)}." for _ in range(rng.randrange(4)))])


def render(conversation: Conversation, system: str | None = SYSTEM_PROMPT) -> str:
    """The conversation as the chat template writes it; without the system message where `system` is None."""
    parts = [] if system is None else [f"{IM_START}system\n{system}{IM_END}\n"]
    for turn in conversation:
        parts.append(f"{IM_START}user\n{turn.asked}{IM_END}\n{IM_START}assistant\n{turn.answer}{IM_END}\n")
    return "".join(parts)


def fingerprint(seed: int, count: int = 2000) -> str:
    """A hash of the first conversations of a stream: two trainings with equal hashes saw the same text."""
    stream, digest = conversations(seed), hashlib.sha256(CHAT_TEMPLATE.encode())
    for _ in range(count):
        digest.update(render(next(stream), None).encode())
    return digest.hexdigest()
