"""Checks of single values that a caller gives: the value as it is stored, or a `UserError` that names the parameter."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from mini_infer.errors import UserError

Check = Callable[[str, Any], Any]
"""(parameter's name, value) → the value as stored, or UserError."""


def refuse(name: str, value: object, allowed: str) -> UserError:
    """The error for a parameter whose value is not what is `allowed`."""
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        shown = "a number of thousands of digits"
    return UserError(f"{name} must be {allowed}, not {shown if len(shown) <= 60 else shown[:57] + '...'}")


def is_integer(value: object) -> bool:
    """A whole number, of whatever library; true and false are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def number(low: float, high: float = math.inf, *, above: bool = False) -> Check:
    """A check for `low <= value <= high`, or `low < value` where `above`."""
    allowed = f"a finite number above {low:g}" if above else f"a number from {low:g} to {high:g}"

    def check(name: str, value: Any) -> float:
        # NaN fails every comparison, infinity the last; both spare float() the integers it cannot hold
        real = isinstance(value, Real) and not isinstance(value, bool)
        if not real or not low <= value <= min(high, sys.float_info.max) or (above and value == low):
            raise refuse(name, value, allowed)
        return float(value)

    return check


def integer(low: float = -math.inf, high: float = math.inf, *, allowed: str | None = None) -> Check:
    """A check for a whole number within the bounds."""
    bounds = "" if math.isinf(low) else f" of at least {low}" if math.isinf(high) else f" from {low} to {high}"

    def check(name: str, value: Any) -> int:
        if not is_integer(value) or not low <= value <= high:
            raise refuse(name, value, allowed or f"an integer{bounds}")
        return int(value)

    return check


def boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise refuse(name, value, "true or false")
    return value
