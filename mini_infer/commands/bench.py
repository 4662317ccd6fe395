"""`mini-infer bench`: the engine's speed, each figure beside what this machine gives at most."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from msgspec.structs import replace

from mini_infer.build import build_engine
from mini_infer.commands.terminal import Waiting, write
from mini_infer.config import EngineConfig
from mini_infer.errors import UserError
from mini_infer.version import __version__


def run(options: EngineConfig, cases: Sequence[str] = (), json: Path | None = None) -> None:
    """Measure `cases` (all where none is named), print them, and write them as JSON to a file (`-`: standard output).

    Where JSON goes to standard output, nothing else does.
    """
    engine = build_engine(options, progress=True)
    import torch

    from mini_infer.bench.cases import CASES
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
    alone = str(json) == "-"
    if not alone:
        write(heading(report) + "\n")
    began = perf_counter()
    for number, name in enumerate(cases or CASES, 1):
        with Waiting(f"measuring {name} ({number} of {len(cases or CASES)})"):
            found = tuple(CASES[name](driver, limits))
        figures += found
        if not alone:
            write(table(found))
    text = to_json(replace(report, figures=tuple(figures)))
    if json is not None:
        if alone:
            write(text)
        else:
            json.write_text(text)
    if not alone:
        write(f"\n{perf_counter() - began:.0f} s\n")
