"""`mini-infer serve`: the engine behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from mini_infer.commands.terminal import note
from mini_infer.config import EngineConfig, parse_size
from mini_infer.errors import UserError


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of the server, which become `ServerOptions`."""
    options = (
        click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on."),
        click.option("--port", type=int, default=8000, show_default=True, metavar="N", help="0 takes a free one."),
        click.option(
            "--api-key",
            envvar="MINI_INFER_API_KEY",
            metavar="KEY",
            help="Serve only who shows this key.  [default: $MINI_INFER_API_KEY, else everybody]",
        ),
        click.option("--served-model-name", metavar="NAME", help="What the model is called.  [default: its own name]"),
        click.option("--any-model", is_flag=True, help="Answer requests for whatever model."),
        click.option(
            "--max-waiting", type=int, default=256, show_default=True, metavar="N", help="Sequences that may wait."
        ),
        click.option("--max-n", type=int, default=16, show_default=True, metavar="N", help="Answers to one prompt."),
        click.option(
            "--drain-seconds",
            type=float,
            default=30,
            show_default=True,
            metavar="S",
            help="How long a shutdown lets answers finish.",
        ),
        click.option(
            "--cors-origin",
            "cors_origins",
            multiple=True,
            metavar="ORIGIN",
            help="Let pages of this origin use the server from a browser; repeatable, * is all.",
        ),
        click.option("--strict-params", is_flag=True, help="Refuse fields of requests that nobody here knows."),
        click.option(
            "--sse-keepalive",
            type=float,
            default=15,
            show_default=True,
            metavar="S",
            help="Silence in a stream before a comment is sent; 0 sends none.",
        ),
        click.option(
            "--send-timeout",
            type=float,
            default=30,
            show_default=True,
            metavar="S",
            help="How long a client may read nothing before it is cut off.",
        ),
        click.option(
            "--body-limit", default="10MB", show_default=True, metavar="SIZE", help="Largest body of a request."
        ),
        click.option("--observe", is_flag=True, help="Show the engine's state, prompts included, at /v1/engine/state."),
    )
    for option in reversed(options):
        command = option(command)
    return command


SERVER_OPTIONS = (
    "host port api_key served_model_name any_model max_waiting max_n drain_seconds cors_origins strict_params "
    "sse_keepalive send_timeout body_limit observe"
).split()


def run(values: dict[str, Any], engine: EngineConfig) -> None:
    """Serves until a signal. `values` are those of `server_options`. Raises UserError for what a user can mend."""
    from mini_infer.api.options import ServerOptions
    from mini_infer.api.server import bind, serve, url_of
    from mini_infer.api.serving import Serving
    from mini_infer.build import build_engine

    try:
        body_limit = parse_size(values["body_limit"])
    except UserError as error:
        raise UserError(f"--body-limit: {error}") from None
    options = ServerOptions(**values | {"body_limit": body_limit})
    sock = bind(options.host, options.port)
    url = url_of(sock)
    serving = Serving(partial(build_engine, engine, progress=True), options, engine.model)
    if options.is_exposed:
        note(
            f"mini-infer: warning: {options.host} can be reached from other machines, and without --api-key anybody "
            "there can use this server"
        )
    note(f"mini-infer: loading {engine.model}")

    def ready() -> None:
        # The garbage collector would walk through all that was loaded, hundreds of milliseconds each time, for ever.
        gc.freeze()
        note(f"mini-infer: serving {serving.names.served} at {url}/v1 (Ctrl+C ends it)")

    with _log_to_stderr():
        serve(serving, sock, ready)


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Coloured on a terminal, plain lines elsewhere."""
    handler: logging.Handler
    if sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.logging import RichHandler

        handler = RichHandler(console=Console(stderr=True), show_path=False, omit_repeated_times=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = (logging.getLogger("mini_infer"), logging.getLogger("uvicorn"))
    for logger, level in zip(loggers, (logging.INFO, logging.WARNING), strict=True):
        logger.setLevel(level)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
