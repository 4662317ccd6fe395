"""Jinja's sandbox for programs that were downloaded: they reach nothing of ours, and their work is bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from mini_infer.text import growth

MAX_STEPS = 1_000_000
"""Loop turns of one rendering, a call counting as several: seconds at most. A thousand messages need some 20,000."""
STEPS_PER_CALL = 5
CHARACTERS_PER_STEP = 200
"""Characters built count as steps too."""


class Refused(jinja2.TemplateError):
    """Raised by the template through `raise_exception`."""


class Steps:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise OverflowError(f"more than {MAX_STEPS:,} loop turns and calls")


class _Generation(Extension):
    """`{% generation %}` … `{% endgeneration %}` marks the assistant's text for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (the name and type are Jinja's)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Bounded(NodeTransformer):
    """Counts what loops run over and measures what `~` builds; the sandbox sees neither by itself."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "concatenated", [], [], None, None, lineno=node.lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with what chat templates expect, and with bounds on loops, calls and sizes.

    The size of whatever can grow by a number or by repetition is told before it is built, and paid for in steps.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        bounded = {"trim_blocks": True, "lstrip_blocks": True, "finalize": _printed}
        super().__init__(extensions=[_Generation, loopcontrols], **bounded)
        self.filters |= {"tojson": _tojson, "counted": _counted, "concatenated": _concatenated}
        self.filters |= {name: _bounded(self.filters[name], size) for name, size in _GROWING.items()}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        del self.globals["lipsum"]

    @staticmethod
    def concat(parts: Iterable[str]) -> str:  # of blocks, macros and the whole
        kept, length = [], 0
        for part in parts:
            length = growth.check(length + len(part))
            kept.append(part)
        return "".join(kept)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)  # of a method; the sandbox wraps format
        name = getattr(__obj, "__name__", "")
        if name == "join" and args and isinstance(owner, str | bytes):
            args = (_counted(__context, args[0]), *args[1:])
        size = growth.called(owner if isinstance(owner, str | bytes) else "", name, *args, *kwargs.values())
        if owner is not None and not callable(owner):
            _spend(__context, STEPS_PER_CALL, size)
        else:
            _spend(__context, STEPS_PER_CALL)
        result = growth.measured(super().call(__context, __obj, *args, **kwargs))
        if isinstance(result, str):
            _spend(__context, 0, len(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _spend(context, 0, growth.product(operator, left, right))
        return growth.measured(super().call_binop(context, operator, left, right))


def _spend(context: Context, steps: int, length: int = 0) -> None:
    """Pays for a call or an operation and the characters it makes; refuses where they are too many."""
    # parent: what a template sets itself does not count
    context.parent["_steps"].spend(steps + growth.check(length) // CHARACTERS_PER_STEP)


@jinja2.pass_context
def _printed(context: Context, value: Any) -> Any:
    _spend(context, 0, growth.weight(value))
    return value


@jinja2.pass_context
def _counted(context: Context, iterable: Any) -> list[Any]:
    items = list(iterable)
    _spend(context, len(items))
    return items


@jinja2.pass_context
def _concatenated(context: Context, parts: list[Any]) -> str:
    _spend(context, 0, growth.weight(parts))
    return "".join(map(str, parts))


def _bounded(filter: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
    """A filter of Jinja that is paid for by the size of its result."""
    passed = getattr(filter, "jinja_pass_arg", None)  # how Jinja marks what a filter wants to be given first

    @jinja2.pass_context
    def bounded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(value, str | Mapping) and isinstance(value, Iterable):
            value = _counted(context, value)
        _spend(context, STEPS_PER_CALL, size(value, *args, **kwargs))
        there = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        first = [there[passed.name]] if passed is not None else []
        return growth.measured(filter(*first, value, *args, **kwargs))

    return bounded


def _of_numbers(value: Any, *args: Any, **kwargs: Any) -> int:
    numbers = [abs(n) for n in (*args, *kwargs.values()) if isinstance(n, int)]
    return growth.weight(value, *args) + max([0, *numbers])


def _of_lines(value: Any, *args: Any, **kwargs: Any) -> int:
    lines = value.count("\n") + 1 if isinstance(value, str) else growth.weight(value) // 8  # at most one per entry
    widths = [n if isinstance(n, int) else len(n) for n in (*args, *kwargs.values()) if isinstance(n, int | str)]
    return growth.weight(value) + lines * max([4, *widths])


def _of_parts(value: Any, *args: Any, **kwargs: Any) -> int:
    return growth.weight(value) + growth.weight(*args, *kwargs.values()) * (
        len(value) if hasattr(value, "__len__") else 1
    )


_GROWING: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "batch", "slice", "round", "truncate"), _of_numbers),
    **dict.fromkeys(("indent", "wordwrap", "tojson", "pprint"), _of_lines),
    **dict.fromkeys(
        ("join", "sum", "string", "escape", "e", "forceescape", "urlencode", "xmlattr", "urlize"), _of_parts
    ),
    "replace": lambda value, *args, **kwargs: growth.called(
        str(value), "replace", *map(str, (*args, *kwargs.values())[:2])
    ),
    "format": lambda value, *args, **kwargs: growth.formatted(str(value), *args, *kwargs.values()),
}
"""Filters whose result can be longer than what they are given, and how long."""


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as training data has it: Jinja's own filter escapes HTML and all that is not ASCII."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object = "") -> NoReturn:
    raise Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
