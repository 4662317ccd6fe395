"""What bytes a token stands for: the `decoder` of tokenizer.json, read one token at a time.

The library decodes lists of tokens to text. A stream needs the bytes of each token by itself: bytes can be joined and
cut anywhere, text cannot. Every decoder that Llama and Qwen checkpoints use acts on tokens one by one, but for what it
does to the first of a text (dropping the space that the tokenizer put there), so a token has at most two readings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mini_infer.errors import UserError

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))


def _byte_alphabet() -> dict[str, int]:
    """Character → byte of byte-level BPE (Radford et al. 2019): printable Latin-1 stands for itself, the others are
    numbered from U+0100 on in the order of their bytes."""
    themselves = [byte for part in _PRINTABLE for byte in part]
    others = [byte for byte in range(256) if byte not in set(themselves)]
    return {chr(byte): byte for byte in themselves} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


class TokenBytes:
    """Calling it with a token as the vocabulary spells it gives the bytes it adds to a text.

    `decoder` is the field of that name in tokenizer.json. Raises UserError for a decoder that cannot be read this way.
    """

    def __init__(self, decoder: Mapping[str, Any] | None) -> None:
        self._steps = _flatten(decoder)
        self._strip = (
            self._steps.pop()["content"].encode() if self._steps and self._steps[-1]["type"] == "Strip" else b""
        )
        for step in self._steps:
            if step["type"] not in ("ByteLevel", "ByteFallback", "Metaspace", "Replace", "Join") or (
                step["type"] == "Replace" and not isinstance(step["pattern"].get("String"), str)
            ):
                raise UserError(
                    f"tokenizer.json uses the decoder {step['type']} in a way that is not supported; "
                    "supported are those of Llama and Qwen checkpoints (ByteLevel, or Metaspace with byte fallback)"
                )
        self.one_mark_per_byte = any(step["type"] == "ByteFallback" for step in self._steps)
        """Whether the library writes one U+FFFD for each byte of a broken character, or one for the whole of it."""

    def __call__(self, token: str, first: bool = False) -> bytes:
        """The bytes of `token`; `first`: where it is the first visible token of a text."""
        data: bytes | None = None
        for step in self._steps:
            if data is not None:
                break
            match step["type"]:
                case "ByteLevel":
                    in_alphabet = all(char in _BYTE_OF for char in token)
                    data = bytes(_BYTE_OF[char] for char in token) if in_alphabet else token.encode()
                case "ByteFallback":
                    if found := _FALLBACK.fullmatch(token):
                        data = bytes([int(found[1], 16)])
                case "Metaspace":
                    drops = first and step.get("prepend_scheme", "always") != "never"
                    token = token.replace(step["replacement"], "" if drops else " ")
                case "Replace":
                    token = token.replace(step["pattern"]["String"], step["content"])
                case "Join":
                    token = token if first else " " + token
        data = token.encode() if data is None else data
        return data.removeprefix(self._strip) if first else data


def _flatten(decoder: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The steps in order, without those that change nothing here. No decoder at all joins the tokens with spaces."""
    if decoder is None:
        return [{"type": "Join"}]
    steps: list[dict[str, Any]] = [dict(step) for step in decoder.get("decoders", [decoder])]
    kept = [step for step in steps if step["type"] != "Fuse"]
    if kept and kept[-1]["type"] == "Strip":
        # After Fuse the text is one piece, so Strip acts on its start alone; elsewhere it would act on every token.
        alone = steps[-1]["type"] == "Strip" and any(step["type"] in ("Fuse", "ByteLevel") for step in steps[:-1])
        if not alone or kept[-1]["stop"] != 0 or kept[-1]["start"] > 1:
            kept[-1]["type"] = "Strip of every token"
        elif kept[-1]["start"] == 0:
            kept.pop()
    return kept
