"""Log-probabilities in the two shapes of the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mini_infer.api.schemas import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from mini_infer.observe.events import TokenLogprob

if TYPE_CHECKING:
    from mini_infer.text.tokenizer import Tokenizer


def chat_logprobs(scores: Sequence[TokenLogprob], tokenizer: Tokenizer) -> ChatLogprobs:
    """One entry per token. The bytes of all of them, joined, are the text; control tokens are not in it."""

    def entry(token_id: int, logprob: float) -> TopLogprob:
        data = None if token_id in tokenizer.special_ids else tokenizer.token_bytes(token_id)
        return TopLogprob(tokenizer.piece(token_id), logprob, None if data is None else list(data))

    content = []
    for score in scores:
        own = entry(score.token_id, score.logprob)
        content.append(ChatLogprob(own.token, own.logprob, own.bytes, [entry(*top) for top in score.top]))
    return ChatLogprobs(content)


def completion_logprobs(scores: Sequence[TokenLogprob], tokenizer: Tokenizer, offset: int) -> CompletionLogprobs:
    """Parallel lists; `offset` is where in the answer's text the first token begins, in characters.

    Each table has the likeliest tokens in falling order, and the token itself.
    """
    shown = CompletionLogprobs([], [], [], [])
    for score in scores:
        piece = tokenizer.piece(score.token_id)
        table = {tokenizer.piece(token_id): logprob for token_id, logprob in score.top}
        shown.tokens.append(piece)
        shown.token_logprobs.append(score.logprob)
        shown.top_logprobs.append({**table, piece: score.logprob} if piece not in table else table)
        shown.text_offset.append(offset)
        offset += characters(score.token_id, tokenizer)
    return shown


def characters(token_id: int, tokenizer: Tokenizer) -> int:
    """How many characters of the text begin in this token."""
    data = b"" if token_id in tokenizer.special_ids else tokenizer.token_bytes(token_id) or b""
    return sum(byte & 0xC0 != 0x80 for byte in data)  # all bytes but UTF-8's continuations
