"""Watching an engine changes nothing, and an observer sees what is: on the real model, with text, forks and aborts."""

from __future__ import annotations

import pytest

from mini_infer.observe.events import decode_report, encode
from mini_infer.observe.state import decode_state, fold_all
from mini_infer.sampling.params import SamplingParams
from tests.support.engines import Run, choices, prompt, tiny_engine
from tests.support.watch import Mirror


class Late(Mirror):
    """Keeps the snapshot it was welcomed with."""

    def start(self, snapshot):
        super().start(snapshot)
        self.first = snapshot


TIGHT = {"num_blocks": 40, "block_size": 4, "max_running": 7, "max_chunk": 9, "text": "chatml", "eos": (7, 90, 200)}


def jobs():
    for i in range(14):
        yield (
            prompt(3 + 5 * i % 37, seed=i // 2),  # every second one hits what the first left
            SamplingParams(
                temperature=(0, 1, 0.7)[i % 3],
                seed=i,
                n=1 + (i % 4 == 1) + (i % 7 == 3),
                max_tokens=6 + 3 * i,
                stop=["a", "ed "] if i % 2 else [],
                logprobs=2 if i % 5 == 0 else None,
                prompt_logprobs=0 if i % 6 == 2 else None,
            ),
        )


def play(engine, run, mirrors=(), late=None):
    """Arrivals over many steps, some aborts; every sink's state is compared after every report."""
    aborted = []
    for number, job in enumerate(jobs()):
        request = run.add(*job, priority=number % 3)
        if number % 5 == 4:
            engine.abort(request)
            aborted.append(request)
        for _ in range(number % 4):
            step(run, mirrors)
        if number == 6 and late is not None:
            engine.attach(late)
            mirrors = (*mirrors, late)
    while engine.has_work:
        step(run, mirrors)
    if (news := engine.flush()) is not None:
        run.take(news)
    return aborted


def step(run, mirrors):
    run.step()
    snapshot = run.engine.snapshot()
    for mirror in mirrors:
        assert mirror.state == snapshot


@pytest.mark.parametrize("caching", [True, False])
def test_watching_changes_nothing_and_shows_everything(caching):
    plain = Run(tiny_engine(**TIGHT, prefix_cache=caching))
    play(plain.engine, plain)
    watched = Run(tiny_engine(**TIGHT, prefix_cache=caching))
    mirror, late = Mirror(), Late()
    watched.engine.attach(mirror)
    aborted = play(watched.engine, watched, (mirror,), late)
    assert watched.engine.scheduler.preemptions >= 3
    assert set(watched.results) == set(plain.results)
    for request, result in watched.results.items():
        assert choices(result) == choices(plain.results[request])
        assert [c.text for c in result.choices] == [c.text for c in plain.results[request].choices]
        assert result.usage == plain.results[request].usage
        assert (result.finish_reason == "abort") == (request in aborted)
    # the same from JSON, all at once
    reports = [decode_report(encode(report)) for report in late.reports]
    first = decode_state(encode(late.first))
    assert fold_all(first, reports) == watched.engine.snapshot() == mirror.state


def test_pieces_name_every_id_an_observer_sees():
    run = Run(tiny_engine(**TIGHT))
    mirror = Mirror()
    run.engine.attach(mirror)
    play(run.engine, run, (mirror,))
    told = mirror.state.pieces
    for request, result in run.results.items():
        for choice in result.choices:
            assert set(choice.token_ids) <= set(told), request
    tokenizer = run.engine.tokenizer
    assert told == {i: tokenizer.piece(i) for i in told}
