"""Text to ids, with control tokens only where they may be."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

from tokenizers import AddedToken, Tokenizer

from mini_infer.errors import UserError
from mini_infer.text.control_tokens import one_of


class Encoder:
    """Encodes with the library's tokenizer `backend`, which from now on is its own to change.

    The library is told never to read a control token out of text (`encode_special_tokens`). Where one may stand, its
    text is replaced by a *sentinel*, an added token that nobody can type because it holds a random number, and then the
    sentinel's id by the control token's. So a text is encoded in one piece: borders, prefix spaces, normalisers and the
    stripping of spaces beside a token act on it as they do in the library. Nothing changes after construction, so
    several threads may encode at once.
    """

    def __init__(self, backend: Tokenizer, control: Mapping[str, int], unknown_id: int | None) -> None:
        """`control`: control tokens and their ids. `unknown_id`: the token for what the vocabulary cannot write."""
        flags = {token.content: (token.lstrip, token.rstrip) for token in backend.get_added_tokens_decoder().values()}
        backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in control])
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._control = dict(control)
        self._contents = {id: content for content, id in control.items() if id != unknown_id}
        self._added = list(dict.fromkeys([*flags, *control]))
        self.prefix, self.suffix = _around(backend)
        """What the tokenizer puts around a text, such as the begin token."""
        flags_of = {content: flags.get(content, (False, False)) for content in control}
        by_flags = {pair: _add_sentinel(backend, *pair) for pair in dict.fromkeys(flags_of.values())}
        self._sentinels = {content: by_flags[pair] for content, pair in flags_of.items()}
        self.sentinel_ids = frozenset(backend.token_to_id(text) for text in self._sentinels.values())

    def encode(self, text: str, allow_control: bool, mark: str = "") -> list[int]:
        """The ids of a text alone, without `mark`. `allow_control`: control tokens in it that no mark breaks count;
        otherwise all are plain text. Raises UserError for half characters (lone surrogates)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the text holds half a character (U+{ord(text[error.start]):04X} at position {error.start}), "
                "which no tokenizer can encode; send whole characters"
            ) from error
        wanted: list[int] = []
        if allow_control:

            def stand_in(found: re.Match[str]) -> str:
                content = found[0]
                if content not in self._control:
                    return content
                wanted.append(self._control[content])
                return self._sentinels[content]

            text = one_of(self._added, mark).sub(stand_in, text)
        if mark:
            text = text.replace(mark, "")
        # Of the library's ways the only one that lets other threads run meanwhile, and it keeps no offsets.
        found = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        ids: list[int] = []
        control = iter(wanted)
        for id in found:
            if id in self.sentinel_ids:
                ids.append(next(control))
            elif id in self._contents:
                ids.extend(self._spell(self._contents[id]))
            else:
                ids.append(id)
        return ids

    def _spell(self, content: str) -> list[int]:
        """A control token's text written character by character, for models that find it whole in their vocabulary."""
        ids = [token.id for char in content for token in self._backend.model.tokenize(char)]
        if not self._contents.keys().isdisjoint(ids):
            raise UserError(
                f"the text contains {content!r}, which this tokenizer cannot write as plain text; leave it out"
            )
        return ids


def _add_sentinel(backend: Tokenizer, lstrip: bool, rstrip: bool) -> str:
    """Adds a token that nobody can type. Unlike some control tokens it is matched inside words and before
    normalisation: a template's control token must not depend on the text beside it."""
    text = f"<{secrets.token_hex(16)}>"
    backend.add_tokens([AddedToken(text, lstrip=lstrip, rstrip=rstrip, normalized=False, special=False)])
    return text


def _around(backend: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and after a text."""
    bare = backend.encode("x", add_special_tokens=False).ids
    full = backend.encode("x").ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    return [], []
