"""Fields of a request beyond those that have an effect: harmless ones, refused ones, and ones nobody knows.

A field that changes what the client gets, and that is not supported, is refused; silence would be a lie. One that
changes nothing is accepted. One that nobody knows is ignored and named in a response header, or refused where the
server is told to be strict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import msgspec

from mini_infer.api.errors import ApiError, bad
from mini_infer.api.schemas import Message, StreamOptions

HARMLESS = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options "
    "verbosity parallel_tool_calls extra_body extra_headers".split()
)

MAX_FIELDS = 1_000

IGNORED_HEADER = "x-mini-infer-ignored-params"


_NESTED: Mapping[str, Set[str]] = {
    "stream_options": {*StreamOptions.__struct_fields__, "include_obfuscation"},
    "messages": {*Message.__struct_fields__, "refusal", "annotations", "audio", "function_call", "id"},
}
"""Fields with fields of their own: those that are read, and those that clients send back as they got them."""


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(value == v and type(value) is type(v) for v in values)


def _is_text_format(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


def _never(_: Any) -> bool:
    return False


_HARMLESS_IF: Mapping[str, Callable[[Any], bool]] = {
    "response_format": _is_text_format,
    "modalities": _one_of(["text"]),
    "best_of": _one_of(1),
    "suffix": _one_of(""),
    "echo": _one_of(False),
    "use_beam_search": _one_of(False),
    "skip_special_tokens": _one_of(True),
    "spaces_between_special_tokens": _one_of(True),
    "continue_final_message": _one_of(False),
    "add_special_tokens": _one_of(False),
    "length_penalty": _one_of(1, 1.0),
    "repeat_penalty": _one_of(1, 1.0),
    "typical_p": _one_of(1, 1.0),
    "mirostat": _one_of(0),
    "dry_multiplier": _one_of(0, 0.0),
    "xtc_probability": _one_of(0, 0.0),
    "return_tokens_as_token_ids": _one_of(False),
    "no_stop_trim": _one_of(False),
    "stop_regex": _never,
    "regex": _never,
    "ebnf": _never,
    "function_call": _one_of("none"),
    "functions": _one_of([]),
    "audio": _never,
    "prediction": _never,
    "web_search_options": _never,
    "moderation": _never,
    "chat_template": _never,
    "prompt_logprobs": _never,
    "truncate_prompt_tokens": _never,
    "documents": _never,
    "structured_outputs": _never,
    "guided_json": _never,
    "guided_regex": _never,
    "guided_choice": _never,
    "guided_grammar": _never,
    "guided_decoding": _never,
    "grammar": _never,
    "json_schema": _never,
    "logits_processors": _never,
    "bad_words": _one_of([]),
    "allowed_token_ids": _never,
}
"""Fields that are known and not supported, and the values of each that ask for nothing. Null always does."""

_WORDS = {
    "functions": "use tools once this server supports them",
    "function_call": "use tool_choice once this server supports it",
    "chat_template": "the server's own template is used",
    "echo": "the answer never repeats the prompt",
    "skip_special_tokens": "the text never shows control tokens; return_token_ids shows their ids",
    "repeat_penalty": "use repetition_penalty",
    "no_stop_trim": "use include_stop_str_in_output",
    "return_tokens_as_token_ids": "use return_token_ids",
}


def check(fields: Mapping[str, msgspec.Raw], kind: type[msgspec.Struct], *, strict: bool) -> list[str]:
    """The names of fields that nobody knows, which are ignored. Raises ApiError for those that are refused.

    `kind` is the struct that the fields are read as.
    """
    if len(fields) > MAX_FIELDS:
        raise bad(f"the body has {len(fields)} fields: at most {MAX_FIELDS} are read", None)
    known = set(kind.__struct_fields__)
    for name in (fields.keys() & _HARMLESS_IF.keys()) - known:
        value = msgspec.json.decode(fields[name])
        if value is not None and not _HARMLESS_IF[name](value):
            raise _refused(name, value)
    _check_tools(fields)
    unknown = sorted(fields.keys() - HARMLESS - _HARMLESS_IF.keys() - {"tools", "tool_choice"} - known)
    unknown += [name for field in known & fields.keys() & _NESTED.keys() for name in _nested(field, fields[field])]
    if unknown and strict:
        names = ", ".join(unknown[:20])
        message = f"unknown field{'s' * (len(unknown) > 1)}: {names} (a server without --strict-params ignores them)"
        raise bad(message, unknown[0], "unknown_parameter")
    return unknown


def _nested(field: str, value: msgspec.Raw) -> Iterator[str]:
    """What nobody knows within a field, each name once, where it comes first: `messages.0.nmae`."""
    known, seen = _NESTED[field], set[str]()
    found: Any = msgspec.json.decode(value, type=dict[str, msgspec.Raw] | list[dict[str, msgspec.Raw]] | None)
    for number, each in enumerate(found if isinstance(found, list) else [found or {}]):
        place = f"{field}.{number}" if isinstance(found, list) else field
        for name in sorted(each.keys() - known - seen):
            if bytes(each[name]) != b"null":
                seen.add(name)
                yield f"{place}.{name}"


def _refused(name: str, value: Any) -> ApiError:
    if name == "response_format":  # clients recognise this sentence
        kind = value.get("type") if isinstance(value, dict) else value
        message = f"'response_format' of type {str(kind)[:60]!r} is not supported with this model"
    else:
        message = f"{name} is not supported" + (f"; {_WORDS[name]}" if name in _WORDS else "")
    return bad(message, name, "unsupported_parameter")


def _check_tools(fields: Mapping[str, msgspec.Raw]) -> None:
    """Tools can be offered, and never be called: that is honest only where the client says so itself."""
    tools, choice = (msgspec.json.decode(fields[name]) if name in fields else None for name in ("tools", "tool_choice"))
    if choice not in (None, "none", "auto"):
        raise bad("tool_choice is not supported: this server calls no tools", "tool_choice", "unsupported_parameter")
    if tools is not None and tools != [] and choice != "none":
        raise bad("tools are not supported: this server calls none", "tools", "unsupported_parameter")
