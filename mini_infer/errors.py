"""Errors that a user can cause and mend."""

from __future__ import annotations


class UserError(ValueError):
    """One readable line that names the thing and the remedy. The command line prints it and exits with code 2."""
