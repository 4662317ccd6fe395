"""Recordings of the real engine (on the model without tensors): file, fold, export and times agree with the run."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from mini_infer.observe.metrics import RequestTimes
from mini_infer.observe.perfetto import events
from mini_infer.observe.sinks import RingSink
from mini_infer.observe.state import fold, fold_all
from mini_infer.observe.trace_file import FileSink, read_trace
from mini_infer.sampling.params import SamplingParams
from tests.observe.test_perfetto import check_format, rows, spans
from tests.support.fake import FakeRunner, fake_engine
from tests.support.watch import Watch


def lively_run(seed: int, path: Path, *, late: int = 0) -> Watch:
    """Forty requests through a small pool, with forks, aborts, pauses and failing forward passes, recorded to `path`.

    The recording begins after `late` steps.
    """
    rng = random.Random(seed)
    engine = fake_engine(num_blocks=24, max_running=6, max_batch_tokens=16, max_chunk=8, context=64)
    assert isinstance(engine.runner, FakeRunner)
    engine.runner.before_run = lambda batch: 1 // (rng.random() > 0.03)
    watch, sink, ids = Watch(engine), FileSink(path, {}), []
    head = [rng.randrange(50) for _ in range(12)]
    for step in range(400):
        if step == late:
            engine.attach(sink)
        if len(ids) < 40 and rng.random() < 0.4:
            prompt = head[: rng.choice((0, 8, 12))] + [rng.randrange(50) for _ in range(rng.randrange(1, 20))]
            params = SamplingParams(temperature=1, n=rng.choice((1, 1, 2)), max_tokens=rng.randrange(1, 20))
            ids.append(engine.add_request(prompt, params, priority=rng.randrange(2)))
        if ids and rng.random() < 0.1:
            engine.abort(rng.choice(ids))
        if rng.random() < 0.05:
            engine.set_paused(not engine.scheduler.paused)
        if not engine.scheduler.paused:
            watch.step()
        elif (news := engine.flush()) is not None:
            watch.take(news)
    engine.set_paused(False)
    watch.run()
    engine.detach(sink)
    sink.close()
    return watch


@pytest.mark.parametrize("seed", range(6))
def test_a_recording_folds_to_the_state_at_its_end(tmp_path, seed):
    watch = lively_run(seed, tmp_path / "t", late=seed % 6 * 15)
    trace = read_trace(tmp_path / "t")
    reports = list(trace.reports())
    assert reports == watch.reports[-len(reports) :]
    end = fold_all(trace.snapshot, reports)
    assert end == watch.state == watch.engine.snapshot()
    assert end.totals.preemptions
    assert end.totals.cached_tokens
    assert end.totals.abort


@pytest.mark.parametrize("seed", range(6))
def test_its_export_keeps_to_the_format_and_to_the_reports(tmp_path, seed):
    watch = lively_run(seed, tmp_path / "t", late=seed % 6 * 15)
    trace = read_trace(tmp_path / "t")
    made = list(events(trace))
    check_format(made)
    reports = list(trace.reports())
    work = sum(e["args"]["tokens"] for e in made if e["name"] in ("prefill", "decode", "verify"))
    assert work == watch.state.totals.computed_tokens - trace.snapshot.totals.computed_tokens
    for name in ("preempted", "finished"):
        assert len([e for e in made if e["name"] == name]) == sum(len(getattr(r, name)) for r in reports)
    ended = {f.seq_id for r in reports for f in r.finished}
    assert ended <= set(rows(made))
    for name, row in rows(made).items():
        edges = spans(row)
        assert all(a[2] <= b[1] for a, b in pairwise(edges)), f"{name} did two things at once"
    shown = [e["args"]["blocks"] for e in made if e["name"] in ("prefill", "decode")]
    assert min(shown) >= 1
    assert max(shown) <= 16


@pytest.mark.parametrize("seed", range(3))
def test_its_times_count_every_token_once(tmp_path, seed):
    watch = lively_run(seed, tmp_path / "t")
    times = RequestTimes()
    done = [t for r in read_trace(tmp_path / "t").reports() for t in times.add(r)]
    assert not times.live
    assert {t.seq_id: t.tokens for t in done} == {s: len(watch.tokens.get(s, ())) for s in watch.finished}
    for t in done:
        assert t.e2e is not None
        assert t.queued is None or 0 <= t.queued <= t.e2e
        if t.ttft is not None and t.tpot is not None:
            assert t.ttft + t.tpot * (t.tokens - 1) <= t.e2e + 1e-9
            assert sum(t.itl) == pytest.approx(t.tpot * (t.tokens - 1))


def test_a_reader_that_was_too_slow_heals_with_a_snapshot():
    engine = fake_engine()
    ring = RingSink(4)
    engine.attach(ring)
    engine.add_request([1, 2, 3], max_tokens=30)
    for _ in range(10):
        engine.step()
    snapshot = engine.snapshot()
    assert ring.dropped == 6
    for _ in range(3):
        engine.step()
    state = snapshot
    for report in ring.since(snapshot.seq):
        state = fold(state, report)
    assert state == engine.snapshot()
