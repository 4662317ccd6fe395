"""Errors that a user can cause and mend."""

from __future__ import annotations


class UserError(ValueError):
    """One readable line that names the thing and the remedy. The command line prints it and exits with code 2."""


def is_utf8(text: str) -> bool:
    """Whether a text has whole characters only: bytes of an argument that are none become lone surrogates in Python."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
