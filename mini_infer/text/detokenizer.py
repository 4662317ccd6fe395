"""Ids to text, one token at a time.

The library's `DecodeStream` would do this, but it raises where a run of byte tokens turns out to be no UTF-8, holds
back such a run for ever while decoding it anew at every token, and has no way to get at what it holds at the end.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_infer.text.tokenizer import Tokenizer

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


class Detokenizer:
    """Turns a stream of ids into text, in time linear in its length.

    A character is released when its last byte has come, never in part. Bytes that are no UTF-8 become U+FFFD as soon as
    that is certain. The joined text is that of `Tokenizer.decode`. `prompt_ids`: what comes before; after a visible
    prompt the text keeps the space that the first word of a text would lose, and a character that the prompt left
    unfinished comes whole.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._per_byte = tokenizer.one_mark_per_byte
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape" if self._per_byte else "replace")
        self._first = True
        visible = (id for id in reversed(prompt_ids) if id not in self._skipped)
        for id in reversed([*islice(visible, 4)]):  # a character has at most four bytes
            self.push(id)

    def push(self, token_id: int) -> str:
        """The text that is certain after one more token, often empty."""
        if token_id in self._skipped:
            return ""
        data = self._tokenizer.token_bytes(token_id, self._first)
        if data is None:
            return ""
        self._first = False
        return self._text(self._utf8.decode(data))

    def flush(self) -> str:
        """The rest at the end: U+FFFD for a character that was never finished."""
        return self._text(self._utf8.decode(b"", final=True))

    def _text(self, text: str) -> str:
        return _ESCAPED_BYTE.sub("\ufffd", text) if self._per_byte else text
