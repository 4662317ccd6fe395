"""Chat messages as an API client sends them, checked and brought into the one form that templates are written for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mini_infer.errors import UserError

MAX_DEPTH = 64
"""Levels of lists and objects inside one another in a request."""
LONGEST_CHAT = 8_000_000
"""Characters of a conversation, more than any context holds: a template is not asked to go through more."""
_REASONING = ("reasoning_content", "thinking", "reasoning")


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of the messages made of plain JSON values, each with a role.

    A content list of text parts becomes their texts joined with nothing between; keys with the value None are left out
    (templates test for missing ones); reasoning is found under each of the names that clients and templates use.
    Raises UserError for anything else than text parts, and for messages that are none.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise UserError('messages must be a list of objects such as {"role": "user", "content": "Hello"}')
    if not messages:
        raise UserError("messages is empty; give at least one message")
    return [_plain_message(message, number) for number, message in enumerate(messages)]


def _plain_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(message, Mapping):
        raise UserError(f'{where} must be an object such as {{"role": "user", "content": "Hello"}}')
    plain = {key: value for key, value in plain_json(message, where).items() if value is not None}
    if not isinstance(plain.get("role"), str) or not plain["role"]:
        raise UserError(f"{where} needs a role such as user, assistant or system")
    if "content" in plain:
        plain["content"] = _text_of(plain["content"], where)
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning} | plain | {"reasoning_content": reasoning}
    return plain


def _text_of(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(f"{where}.content must be a text or a list of text parts")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            name = kind if isinstance(kind, str) else "without a type"
            raise UserError(f"{where}.content has a part {name!r}; only parts of type 'text' are supported")
        if not isinstance(part.get("text"), str):
            raise UserError(f"{where}.content has a text part whose text is missing")
        texts.append(part["text"])
    return "".join(texts)


def plain_json(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of `value` made of plain JSON types alone, so that a template meets no object with methods of its own."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if depth > MAX_DEPTH:
        raise UserError(f"{where} is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return {str(key): plain_json(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, where, depth + 1) for item in value]
    raise UserError(f"{where} holds a value of type {type(value).__name__}; only JSON values can be sent to a template")
