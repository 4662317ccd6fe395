"""Prompts that can never be served: ids that are none, and texts that cannot fit, found without encoding them whole.

Encoding a megabyte takes seconds and hundreds of megabytes of memory, and a body may have ten. So a text that looks
too long is first counted in windows, and no further than to the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mini_infer.api.errors import bad, too_long

if TYPE_CHECKING:
    from mini_infer.text.tokenizer import Tokenizer

WINDOW = 16_384
"""Characters counted at once."""

SLACK = 16
"""Tokens by which the count of a window may exceed its part of the whole: the words that its ends cut."""

LIKELY = 3
"""Characters per token up to which a text may well fit: it is encoded without counting first."""


def check_ids(ids: Iterable[int], vocab_size: int, param: str) -> None:
    """Raises ApiError where one of them is not in the vocabulary."""
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        shown = str(wrong) if abs(wrong) < 10**20 else "of more than 20 digits"
        raise bad(f"{param} must hold token ids from 0 to {vocab_size - 1}, not {shown}", param)


def check_length(texts: Iterable[str], tokenizer: Tokenizer, limit: int, param: str) -> None:
    """Raises ApiError where the texts together have more than `limit` tokens for certain."""
    texts = [text for text in texts if text]
    if sum(map(len, texts)) <= max(LIKELY * limit, WINDOW):
        return
    count = 0
    for text in texts:
        for start in range(0, len(text), WINDOW):
            ids = tokenizer.encode(text[start : start + WINDOW], allow_special=False, add_special_tokens=False)
            count += max(0, len(ids) - SLACK)
            if count > limit:
                raise too_long(f"at least {count}", limit, param)
