"""The conversation a person has: what is sent with the next message, and which request is the answer under way."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tui.model.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages` are complete; `asked` is being answered by `request_id` (None: not accepted yet)."""

    messages: tuple[dict[str, str], ...] = ()
    asked: str | None = None
    request_id: str | None = None

    @property
    def is_busy(self) -> bool:
        return self.asked is not None

    def ask(self, text: str) -> Conversation:
        return replace(self, asked=text, request_id=None)

    @property
    def prompt(self) -> list[dict[str, str]]:
        """What the engine is asked."""
        return [*self.messages, {"role": "user", "content": self.asked or ""}]

    def accepted(self, request_id: str) -> Conversation:
        return replace(self, request_id=request_id)

    def refused(self) -> Conversation:
        return replace(self, asked=None, request_id=None)

    def settled(self, record: RequestRecord) -> Conversation:
        """After the end of the answer. A partial one is kept; one without any text is forgotten with its question."""
        text = "".join(span.text for span in record.spans)
        if not text:
            return self.refused()
        said = ({"role": "user", "content": self.asked or ""}, {"role": "assistant", "content": text})
        return Conversation((*self.messages, *said))


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of the next message, as a person set them. None: the model's own."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = 512

    @property
    def given(self) -> dict[str, float | int]:
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}


NAMES: dict[str, type] = {
    "temperature": float, "top_p": float, "top_k": int, "min_p": float, "repetition_penalty": float, "seed": int,
    "max_tokens": int,
}  # fmt: skip
