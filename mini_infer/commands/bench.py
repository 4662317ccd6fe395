"""`mini-infer bench`: the engine's speed, each figure beside what this machine gives at most."""

from __future__ import annotations

import platform
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from mini_infer.commands.options import debug_option, engine_options
from mini_infer.commands.terminal import Waiting, write
from mini_infer.config import EngineConfig
from mini_infer.errors import UserError
from mini_infer.version import __version__

CASES = ("prefill", "decode", "ttft", "work", "speculation")


@click.command()
@click.option("--case", "cases", multiple=True, type=click.Choice(CASES), help="Only this; repeatable.  [default: all]")
@click.option(
    "--json",
    "as_json",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Both sides of every ratio as JSON; - writes nothing else to standard output.",
)
@engine_options
@debug_option
def bench(cases: tuple[str, ...], as_json: Path | None, **values: Any) -> None:
    """Measure the engine's speed beside what this machine gives at most."""
    run(EngineConfig(**values), cases, as_json)


def run(options: EngineConfig, cases: tuple[str, ...] = (), as_json: Path | None = None) -> None:
    """Measure `cases` (all where none is named), print them, and write them as JSON (`-`: to standard output)."""
    from mini_infer.build import build_engine

    alone = str(as_json) == "-"
    if as_json is not None and not alone:
        try:
            as_json.open("a").close()  # what takes minutes should not fail at its end
        except OSError as error:
            raise UserError(f"--json {as_json} cannot be written: {error.strerror}") from None
    engine = build_engine(options, progress=True)
    import torch
    from msgspec.structs import replace

    from mini_infer.bench.cases import BY_NAME
    from mini_infer.bench.drive import Driver, model_of
    from mini_infer.bench.figures import Figure
    from mini_infer.bench.limits import Limits
    from mini_infer.bench.report import Report, heading, table, to_json

    model = model_of(engine)
    if model.device.type != "cpu":
        raise UserError("bench measures the CPU's limits only: use --device cpu")
    engine.set_draft_tokens(0)
    driver, limits = Driver(engine), Limits(model)
    figures: list[Figure] = []
    report = Report(
        version=__version__,
        torch=str(torch.__version__),
        machine=platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        model=engine.config.identity,
        dtype=str(model.dtype).removeprefix("torch."),
        weight_bytes=limits.weight_bytes,
        max_batch_tokens=engine.options.max_batch_tokens or 0,
        max_chunk=engine.options.max_chunk or 0,
        figures=(),
    )
    if not alone:
        write(heading(report) + "\n")
    began = perf_counter()
    names = cases or CASES
    for number, name in enumerate(names, 1):
        with Waiting(f"measuring {name} ({number} of {len(names)})"):
            found = tuple(BY_NAME[name](driver, limits))
        figures += found
        if not alone:
            write(table(found))
    text = to_json(replace(report, figures=tuple(figures)))
    if alone:
        write(text)
        return
    if as_json is not None:
        as_json.write_text(text)
    write(f"\n{perf_counter() - began:.0f} s\n")
