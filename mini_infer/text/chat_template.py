"""Chat templates: Jinja programs that come with a checkpoint, rendered in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2

from mini_infer.errors import UserError
from mini_infer.text.template_sandbox import Bounded, Refused, Sandbox, Steps


class ChatTemplate:
    """A compiled template. `specials`: the variables for special tokens, such as `bos_token`.

    Raises UserError if the source is not a template.
    """

    def __init__(self, source: str, specials: Mapping[str, str] | None = None) -> None:
        self._specials = dict(specials or {})
        try:
            environment = Sandbox()
            tree = Bounded().visit(environment.parse(source))
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
            return self._template.render({**self._specials, **(variables or {}), **given, "_steps": Steps()})
        except Refused as error:
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


_REMEDY = (
    "check the messages, give another template as chat_template.jinja, or send the prompt raw (generate "
    "--raw, or the completions route)"
)


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _line(error: Exception) -> str:
    """The error's words on one line."""
    return " ".join(str(error).split()) or "no reason given"
