"""Typed access to a JSON object a person may have edited: a wrong value is a `UserError` naming file, key and value."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mini_infer.errors import UserError


class JsonReader:
    """Reads keys of one object. Null counts as absent."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.values = values

    def error(self, key: str, rule: str) -> UserError:
        """The error for `key`: what stands there, and `rule`, what should."""
        if key in self.values:
            return UserError(f"{self.name}: {key} is {json.dumps(self.values[key], default=str)[:200]}, {rule}")
        return UserError(f"{self.name}: {key} is missing, {rule}")

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def section(self, key: str) -> JsonReader | None:
        """The object under `key`, or None where there is none or it is empty."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, "but must be an object or null")
        return JsonReader(f"{self.name}: {key}", value) if value else None

    def refuse_unless(self, key: str, neutral: Sequence[object]) -> None:
        """Stop on a key that would change the mathematics: only null, empty and the `neutral` values pass."""
        if self.get(key) not in (None, {}, [], *neutral):
            supported = " or ".join(json.dumps(v) for v in (*neutral, None))
            raise self.error(key, f"which is not supported (supported: {supported})")

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = sys.maxsize) -> int:
        """A whole number within the bounds; without a default the key is required."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            above = f" and at most {maximum}" if maximum < sys.maxsize else ""
            raise self.error(key, f"but must be a whole number of at least {minimum}{above}")
        return value

    def number(self, key: str, default: float | None = None, above: float = 0.0) -> float:
        """A finite number greater than `above`; without a default the key is required."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= sys.float_info.max:
            raise self.error(key, f"but must be a number greater than {above:g}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "but must be true or false")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids, in order and without repeats; empty where there is none."""
        value = self.get(key, [])
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
            raise self.error(key, "but must be a token id or a list of token ids")
        return tuple(dict.fromkeys(ids))
