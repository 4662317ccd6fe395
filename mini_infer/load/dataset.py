"""Prompts and arrival times out of files: JSON lines, ShareGPT's layout, plain numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from mini_infer.errors import UserError
from mini_infer.load.records import Ask, Conversation, Message
from mini_infer.load.workload import WorkloadOptions

_HUMAN = ("human", "user")


def read_conversations(path: Path, options: WorkloadOptions) -> list[Conversation]:
    """One conversation per entry: `prompt` (text or token ids), `messages`, or ShareGPT's `conversations`.

    An entry's own `max_tokens` wins over `options.output_tokens`. Of ShareGPT's turns the first `options.turns` of the
    human side are asked. Raises UserError, naming the entry, for what it cannot read.
    """
    found = []
    for number, entry in enumerate(_entries(path), start=1):
        where = f"{path} entry {number}"
        if isinstance(entry, str):
            entry = {"prompt": entry}
        if not isinstance(entry, dict):
            raise UserError(f'{where} is no object; give for instance {{"prompt": "…"}}')
        try:
            conversation = _conversation(entry, options)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{where} cannot be read ({type(error).__name__}: {error})") from None
        if conversation is not None:
            found.append(conversation)
        elif not any(name in entry for name in ("prompt", "messages", "conversations")):
            raise UserError(f"{where} has none of prompt, messages and conversations")
    if not found:
        raise UserError(f"{path} holds no prompts")
    return found


def read_arrivals(path: Path) -> list[float]:
    """Recorded arrival times in seconds, from the first on and in order: numbers, or objects with a `timestamp`.

    Raises UserError.
    """
    times = []
    for number, entry in enumerate(_entries(path), start=1):
        value = entry.get("timestamp") if isinstance(entry, dict) else entry
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f'{path} entry {number} has no time; give a number of seconds, or {{"timestamp": 1.5}}')
        times.append(float(value))
    if not times:
        raise UserError(f"{path} holds no arrival times")
    times.sort()
    return [time - times[0] for time in times]


def _entries(path: Path) -> list[Any]:
    """A JSON array, or one JSON value per line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror})") from None
    try:
        if data.lstrip().startswith(b"["):
            try:
                whole = msgspec.json.decode(data)
            except msgspec.DecodeError:
                if data.count(b"\n") < 2:
                    raise
            else:
                return list(whole)
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is no JSON ({error})") from None
    entries = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                entries.append(msgspec.json.decode(line))
            except msgspec.DecodeError as error:
                raise UserError(f"{path} line {number} is no JSON ({error})") from None
    return entries


def _conversation(entry: dict[str, Any], options: WorkloadOptions) -> Conversation | None:
    """None for an entry with nothing to ask."""
    limit = entry.get("max_tokens") or options.output_tokens
    if not isinstance(limit, int):
        raise TypeError(f"max_tokens is {limit!r}")

    def ask(**what: Any) -> Ask:
        return Ask(max_tokens=limit, ignore_eos=options.exact, temperature=options.temperature, **what)

    if entry.get("messages"):
        return Conversation(ask(messages=tuple(Message(m["role"], _text(m["content"])) for m in entry["messages"])))
    if "conversations" in entry:
        said = [turn["value"] for turn in entry["conversations"] if turn["from"] in _HUMAN and turn["value"].strip()]
        if not said:
            return None
        return Conversation(ask(messages=(Message("user", said[0]),)), tuple(said[1 : options.turns]))
    prompt = entry.get("prompt")
    if not prompt:
        return None
    if isinstance(prompt, list):
        if not all(isinstance(token, int) for token in prompt):
            raise TypeError("prompt is neither a text nor a list of token ids")
        return Conversation(ask(prompt=tuple(prompt)))
    if not isinstance(prompt, str):
        raise TypeError("prompt is neither a text nor a list of token ids")
    return Conversation(ask(messages=(Message("user", prompt),)))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise TypeError("content is no text")
    return content
