"""The text of one answer as it grows: detokenised, and cut at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from mini_infer.text.detokenizer import Detokenizer
from mini_infer.text.stop import StopStrings
from mini_infer.text.tokenizer import Tokenizer


class TextStream:
    """Takes the ids of an answer one by one and releases its text.

    A stop string that is the name of a control token, such as `<|im_end|>`, is met by that token, which the text does
    not show. `prompt_ids`: see `Detokenizer`. Raises ValueError for an empty stop string.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), stops: Sequence[str] = ()) -> None:
        self._stops = StopStrings(stops)
        self._detokenizer = Detokenizer(tokenizer, prompt_ids)
        self._control = {id: stop for stop in stops if (id := tokenizer.id_of(stop)) in tokenizer.special_ids}
        self._released: list[str] = []
        self._matched: str | None = None
        self._ended = False

    def push(self, token_id: int, may_stop: bool = True) -> tuple[str, str | None]:
        """(text to show, the stop string that was met, if any). The text ends before the stop string; nothing more is
        released after it. `may_stop=False`: this token cannot end the answer, whatever it spells."""
        if self._ended:
            return "", self._matched
        if may_stop and token_id in self._control:
            delta = self.end()
            self._matched = self._matched or self._control[token_id]
            return delta, self._matched
        text = self._detokenizer.push(token_id)
        if not text:
            return "", None
        delta, self._matched = self._stops.push(text, may_stop)
        self._ended = self._matched is not None
        return self._release(delta), self._matched

    def end(self) -> str:
        """The rest of the text, once no token follows: what was held back, and U+FFFD for an unfinished character."""
        if self._ended:
            return ""
        self._ended = True
        delta, self._matched = self._stops.push(self._detokenizer.flush())
        return self._release(delta + self._stops.flush())

    @property
    def text(self) -> str:
        """All text released so far."""
        if len(self._released) > 1:
            self._released = ["".join(self._released)]
        return self._released[0] if self._released else ""

    def _release(self, delta: str) -> str:
        if delta:
            self._released.append(delta)
        return delta
