"""The measuring itself: figures against a server whose delays are known, and what the client costs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mini_infer.load.arrivals import Level
from mini_infer.load.client import Client, Target
from mini_infer.load.figures import Figures, Slo, figures
from mini_infer.load.runner import Extent, LevelRun, Runner
from mini_infer.load.workload import WorkloadOptions, make_workload
from tests.load.test_runner import Counted

pytestmark = pytest.mark.timing


@contextmanager
def delayed(ttft_s: float, gap_s: float) -> Iterator[str]:
    """The fake server in a process of its own."""
    command = [sys.executable, "-m", "tests.load.fake_server", str(ttft_s), str(gap_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.kill()


def measure(url: str, level: Level, requests: int, tokens: int) -> LevelRun:
    async def main() -> LevelRun:
        runner = Runner(lambda: Client(Target(url, "m")), time.perf_counter, Counted())
        workload = make_workload(WorkloadOptions(output_tokens=tokens))
        await runner.run(level, workload.conversations("warm"), Extent(requests=level.concurrency or 1), "w")
        run = await runner.run(level, workload.conversations("1"), Extent(requests=requests), "1")
        await runner.aclose()
        return run

    return asyncio.run(main())


def near(found: float | None, truth: float) -> None:
    """Within 3 ms or 2 %, in milliseconds."""
    assert found is not None
    assert abs(found - truth) <= max(3.0, 0.02 * truth), f"{found:.2f} where {truth:.2f} is true"


@pytest.mark.parametrize("streams", [1, 16, 64])
def test_every_figure_is_true(streams: int) -> None:
    ttft, gap, tokens = 0.2, 0.05, 21
    with delayed(ttft, gap) as url:
        found: Figures = figures(measure(url, Level(concurrency=streams), 3 * streams, tokens), Slo())
    shown = (found.ttft_ms.p50, found.tpot_ms.p50, found.itl_ms.p50, found.itl_ms.p99, found.e2e_ms.p50)
    print(f"\n{streams}: {shown}, {found.output_tok_s} tok/s, client {found.client_cpu_share:.1%} of a core")
    total = 1e3 * (ttft + (tokens - 1) * gap)
    for quantity, truth in ((found.ttft_ms, 200), (found.tpot_ms, 50), (found.itl_ms, 50), (found.e2e_ms, total)):
        near(quantity.p50, truth)
        near(quantity.mean, truth)
    assert found.output_tok_s == pytest.approx(streams * tokens / total * 1e3, rel=0.02)


def test_64_streams_of_50_tokens_a_second_cost_less_than_a_fifth_of_a_core() -> None:
    with delayed(0.02, 0.02) as url:
        run = measure(url, Level(concurrency=64), 64, 250)
    found = figures(run, Slo())
    print(f"\n{run.cpu_share:.1%} of a core for {found.output_tok_s:.0f} tok/s; load average {os.getloadavg()}")
    assert found.ok == 64
    assert run.cpu_share < 0.2
