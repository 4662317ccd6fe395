"""Command-line options made from `EngineConfig` and `SamplingParams`, and what is shared by every command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any

import click

from mini_infer.config import EngineConfig, option_name, parse_size
from mini_infer.errors import UserError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_SAMPLING: tuple[tuple[str, Any, str], ...] = (
    ("temperature", float, "0 is greedy, 1 the model's own distribution.  [default: the checkpoint's, else 1]"),
    ("top_p", float, "Keep the likeliest tokens up to this mass."),
    ("top_k", int, "Keep this many of the likeliest tokens; 0 is no limit."),
    ("min_p", float, "Drop tokens below this share of the best one's probability."),
    ("repetition_penalty", float, "Above 1 discourages tokens of prompt and answer."),
    ("presence_penalty", float, "Subtracted once from each token already in the answer."),
    ("frequency_penalty", float, "Subtracted from a token as often as it is in the answer."),
    ("seed", int, "Makes a sampled answer repeatable."),
    ("max_tokens", click.IntRange(1), "Longest answer.  [default: what the context holds]"),
    ("min_tokens", int, "Shortest answer."),
)


def _size(_: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A number of bytes such as 1.5GB or 512MiB."""
    try:
        return None if value is None else parse_size(value)
    except UserError as error:
        raise click.BadParameter(str(error), param=param) from None


def _count_or_auto(_: click.Context, param: click.Parameter, value: str) -> int | str:
    """A whole number, or the word auto."""
    try:
        return value if value == "auto" else int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a whole number or auto", param=param) from None


def _biases(_: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[int, float], ...]:
    """Token ids and what is added to their logits, each as ID=BIAS."""
    pairs = []
    for value in values:
        token, _sign, bias = value.partition("=")
        try:
            pairs.append((int(token), float(bias)))
        except ValueError:
            raise click.BadParameter(f"{value!r} is not ID=BIAS, for instance 198=-100", param=param) from None
    return tuple(pairs)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds one option per knob of `EngineConfig`, in its order."""
    for knob in reversed(fields(EngineConfig)):
        if knob.metadata.get("cli", True):
            command = _engine_option(knob)(command)
    return command


def _engine_option(knob: Field[Any]) -> Decorator:
    about, option = knob.metadata, option_name(knob.name)
    more: dict[str, Any] = {"help": about["help"], "default": knob.default, "metavar": about.get("metavar")}
    more["show_default"] = knob.default is not None and knob.name != "model"
    match about["kind"]:
        case "flag":
            option = f"{option}/--no-{option.removeprefix('--')}"
        case "choice":
            more["type"] = click.Choice(about["choices"])
        case "count" if about.get("auto"):
            more |= {"callback": _count_or_auto, "metavar": "N|auto"}
        case "count":
            more |= {"type": int, "metavar": "N"}
        case "size":
            more["callback"] = _size
    return click.option(option, knob.name, **more)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the sampling parameters, by the names they have in the API."""
    more = (
        click.option("--stop", multiple=True, metavar="TEXT", help="The answer ends before this text; repeatable."),
        click.option(
            "--stop-token-ids", multiple=True, type=int, metavar="ID", help="This token ends the answer; repeatable."
        ),
        click.option("--ignore-eos", is_flag=True, help="The checkpoint's own end tokens do not end the answer."),
        click.option(
            "--logit-bias",
            multiple=True,
            callback=_biases,
            metavar="ID=BIAS",
            help="Added to a token's logit, -100 to 100; repeatable.",
        ),
    )
    for option in reversed(more):
        command = option(command)
    for name, kind, text in reversed(_SAMPLING):
        metavar = "X" if kind is float else "N"
        command = click.option(option_name(name), name, type=kind, metavar=metavar, help=text)(command)
    return command


def sampling_values(values: dict[str, Any]) -> dict[str, Any]:
    """Takes the sampling parameters that were given out of a command's values."""
    names = [name for name, _, _ in _SAMPLING] + ["stop", "stop_token_ids", "ignore_eos", "logit_bias"]
    taken = {name: values.pop(name) for name in names}
    return {name: value for name, value in taken.items() if value is not None}


def debug_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--debug`, before or after the command's name; `mini_infer.cli.main` reads it from the context."""

    def note(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.ensure_object(dict)
        ctx.obj["debug"] = ctx.obj.get("debug", False) or value

    return click.option(
        "--debug",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=note,
        help="Show the trace of an error in place of one line.",
    )(command)
