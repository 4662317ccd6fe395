"""Random numbers that depend on what they are for and on nothing else: not on the batch, the step or the past."""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from struct import pack


class Purpose(IntEnum):
    """What a number decides. Different purposes at one position are independent."""

    SAMPLE = 0  # the token at this position, drawn from the target
    DRAFT = 1  # the token the draft model proposes there
    ACCEPT = 2  # whether that proposal is kept
    RESIDUAL = 3  # what replaces it


def uniform(seed: int, choice: int, position: int, purpose: Purpose) -> float:
    """A number in [0, 1) with 53 random bits, a pure function of its key.

    The key (64-bit seed, index of the choice among n, absolute position of the token, purpose) is hashed with
    BLAKE2b (RFC 7693); the leading 53 bits of the digest, read as little-endian, are the number's mantissa.
    """
    key = pack("<QQQB", seed % 2**64, choice, position, purpose)
    return (int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 11) * 2.0**-53
