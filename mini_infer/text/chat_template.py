"""Chat templates: Jinja programs that come with a checkpoint, rendered in a sandbox with bounded work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from mini_infer.errors import UserError

MAX_STEPS = 1_000_000
"""Loop turns of one rendering, a call counting as several: seconds at most. A thousand messages need some 20,000."""
STEPS_PER_CALL = 5
MAX_LENGTH = 50_000_000
"""Characters or items of one value that a template builds."""
MAX_BITS = 100_000
"""Size of a number that a template computes."""


class ChatTemplate:
    """A compiled template. `specials`: the variables for special tokens, such as `bos_token`.

    Raises UserError if the source is not a template.
    """

    def __init__(self, source: str, specials: Mapping[str, str] | None = None) -> None:
        self._specials = dict(specials or {})
        try:
            environment = _Sandbox()
            tree = _Bounded().visit(environment.parse(source))
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(
                f"the chat template is not valid Jinja (line {error.lineno}: {_line(error)}); {_REMEDY}"
            ) from error
        except RecursionError as error:
            raise UserError(f"the chat template is nested too deeply; {_REMEDY}") from error
        self._only_parts = self._reads_only_parts()

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation. `variables` are further names for the template, such as `enable_thinking`.

        Raises UserError with the template's own sentence where it refuses, and with the reason where it fails.
        """
        if self._only_parts:
            messages = [_as_parts(message) for message in messages]
        given = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render({**self._specials, **(variables or {}), **given, "_steps": _Steps()})
        except _Refused as error:
            raise UserError(f"the chat template refuses these messages: {_line(error)}") from error
        except Exception as error:  # anything a downloaded program may do
            raise UserError(f"the chat template failed ({type(error).__name__}: {_line(error)}); {_REMEDY}") from error

    def _reads_only_parts(self) -> bool:
        """Whether content given as a text would be dropped in silence, while a list of parts is read."""
        probe = "\ue000"  # one character, so that no slice cuts it; the printed form of a list would spell it out
        message = {"role": "user", "content": probe}
        self._only_parts = False
        try:
            return probe not in self.render([message]) and probe in self.render([_as_parts(message)])
        except UserError:
            return False


_REMEDY = "check the messages, give another template as chat_template.jinja, or send the prompt raw"


class _Refused(jinja2.TemplateError):
    """Raised by the template through `raise_exception`."""


class _Steps:
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


class _Bounded(NodeTransformer):
    """Counts what loops run over and measures what `~` builds; the sandbox sees neither by itself."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(node, "measured", [], [], None, None, lineno=node.lineno)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with what chat templates expect, and with bounds on loops, calls and sizes."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters |= {"tojson": _tojson, "counted": _counted, "measured": _measured}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __context.parent["_steps"].spend(STEPS_PER_CALL)  # parent: what a template sets itself does not count
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(value) if isinstance(value, str | list | tuple) else value for value in (left, right)]
        if operator == "**" and all(isinstance(size, int | float) for size in sizes) and max(map(abs, sizes)) > 1000:
            raise OverflowError("a power of a large number")
        if operator == "*" and sizes != [left, right] and sizes[0] * sizes[1] > MAX_LENGTH:
            raise OverflowError(f"a value longer than {MAX_LENGTH:,}")
        return _measured(super().call_binop(context, operator, left, right))


@jinja2.pass_context
def _counted(context: Context, iterable: Any) -> list[Any]:
    items = list(iterable)
    context.parent["_steps"].spend(len(items))
    return items


def _measured(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > MAX_LENGTH:
        raise OverflowError(f"a value longer than {MAX_LENGTH:,}")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError(f"a number of more than {MAX_BITS:,} bits")
    return value


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as training data has it: Jinja's own filter escapes HTML and all that is not ASCII."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object = "") -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _line(error: Exception) -> str:
    """The error's words on one line."""
    return " ".join(str(error).split()) or "no reason given"
