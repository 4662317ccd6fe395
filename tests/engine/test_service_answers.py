"""Many callers of one service: every request is answered once, exactly, and what is given up is freed."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from mini_infer.errors import UserError
from tests.support.engines import expected_greedy, tiny_engine
from tests.support.engines import prompt as tiny_prompt
from tests.support.fake import fake_answer, fake_engine, idle, prompts
from tests.support.serving import CheckedMirror, Gate, ask, in_loop, params, read, serving


def test_answers_are_those_of_the_engine_alone():
    async def main():
        lengths = [1, 5, 16, 33, 40]
        answers = await asyncio.gather(*(ask(service, tiny_prompt(n, n), params(12)) for n in lengths))
        for length, answer in zip(lengths, answers, strict=True):
            assert list(answer.token_ids) == expected_greedy(tiny_prompt(length, length), 12)
            assert answer.finish_reason == "length"
            assert answer.usage.prompt_tokens == length

    with serving(tiny_engine()) as service:
        in_loop(main)


def test_choices_are_told_apart():
    async def main():
        result = await ask(service, [1, 2, 3], params(9, n=4))
        assert [list(c.token_ids) for c in result.choices] == [fake_answer([1, 2, 3], 9, c) for c in range(4)]
        assert [c.finish_reason for c in result.choices] == ["length"] * 4

    with serving() as service:
        in_loop(main)


@pytest.mark.parametrize("seed", [0, 1])
def test_1000_requests_from_8_tasks_with_random_aborts(seed):
    """None lost, none answered twice, every answer right, the pool idle, and the fold equal to every snapshot."""
    engine = fake_engine(num_blocks=48, block_size=4, context=128, max_running=8, max_batch_tokens=24)
    shared = prompts(40, 30)
    counts = dict.fromkeys(("whole", "aborted", "closed", "cancelled", "never read"), 0)
    seen_ids: set[str] = set()

    async def one(rng):
        prompt = shared[rng.randrange(40)][: rng.randrange(1, 30)] + [rng.randrange(50)] * rng.randrange(3)
        count, n = rng.randrange(1, 25), rng.choice((1, 1, 1, 2, 3))
        fate = rng.choice(("whole", "whole", "whole", "aborted", "closed", "cancelled", "never read"))
        counts[fate] += 1
        asked = params(count, n=n)
        if fate == "cancelled":
            task = asyncio.create_task(ask(service, prompt, asked))
            await asyncio.sleep(rng.random() * 0.004)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return
        stream = await service.submit(prompt, asked, priority=rng.randrange(3))
        assert stream.request_id not in seen_ids
        seen_ids.add(stream.request_id)
        if fate == "never read":
            stream.close()
            return
        if fate == "closed":
            async for _ in stream:
                break
            stream.close()
            return
        if fate == "aborted":
            await asyncio.sleep(rng.random() * 0.01)
            service.abort(stream.request_id)
        result = await read(stream)
        for choice in result.choices:
            right = fake_answer(prompt, count, choice.index)
            if choice.finish_reason == "length":
                assert list(choice.token_ids) == right
            else:
                assert (fate, choice.finish_reason) == ("aborted", "abort")
                assert list(choice.token_ids) == right[: len(choice.token_ids)]

    async def task(number):
        rng = random.Random(1000 * seed + number)
        for _ in range(125):
            await one(rng)

    async def main():
        await asyncio.gather(*(task(number) for number in range(8)))
        while (await service.snapshot()).sequences:
            await asyncio.sleep(0.01)

    with serving(engine) as service:
        mirror = CheckedMirror(lambda: engine)
        service.attach(mirror)
        in_loop(main, 120)
    assert sum(counts.values()) == 1000
    assert min(counts.values()) > 50
    assert mirror.faults == []
    assert not service._live
    assert idle(engine)
    state = engine.snapshot()
    assert mirror.state == state
    assert state.totals.requests >= len(seen_ids)
    assert state.totals.error == state.totals.faults == 0
    # every sequence has one end: forks may add some, so the ends are no fewer than the requests
    assert state.totals.length + state.totals.abort >= state.totals.requests


def test_more_than_fit_at_once_are_all_answered():
    async def main():
        results = await asyncio.gather(*(ask(service, [i % 50, i // 50], params(4)) for i in range(300)))
        for i, result in enumerate(results):
            assert list(result.token_ids) == fake_answer([i % 50, i // 50], 4)

    with serving(max_running=2) as service:
        in_loop(main)


def test_a_refused_request_leaves_nothing_behind():
    async def main():
        for bad in ([], [50], [-1], list(range(40)) * 20):
            with pytest.raises(UserError):
                await service.submit(bad, params())
        with pytest.raises(UserError, match="n must be at most"):
            await service.submit([1], params(n=17))
        state = await service.snapshot()
        assert not state.sequences
        assert state.totals.requests == 0
        assert list((await ask(service, [1], params(3))).token_ids) == fake_answer([1], 3)

    with serving() as service:
        in_loop(main)


def test_lower_priorities_go_first():
    async def main():
        service.pause()
        order = []

        async def wait_for(name, stream):
            await read(stream)
            order.append(name)

        streams = [await service.submit([i], params(3), priority=p) for i, p in enumerate((5, 0, 3))]
        waits = [asyncio.create_task(wait_for(i, s)) for i, s in enumerate(streams)]
        service.resume()
        await asyncio.gather(*waits)
        assert order == [1, 2, 0]

    with serving(max_running=1) as service:
        in_loop(main)


def test_requests_of_different_salts_share_nothing():
    async def main():
        prompt = list(range(20))
        hits = []
        for salt in ("a", "a", "b", ""):
            hits.append((await ask(service, prompt, params(2), cache_salt=salt)).usage.cached_tokens)
        assert hits == [0, 16, 0, 0]

    with serving() as service:
        in_loop(main)


# --- giving up ------------------------------------------------------------------------------------------------------


async def idle_again(service, engine):
    while (await service.snapshot()).sequences:
        await asyncio.sleep(0.005)
    assert idle(engine)
    assert not service._live
    assert list((await ask(service, [7, 8], params(5))).token_ids) == fake_answer([7, 8], 5)


@pytest.mark.parametrize("when", ["queued", "prefill", "decode"])
@pytest.mark.parametrize("how", ["abort", "close", "cancel"])
@pytest.mark.parametrize("n", [1, 3])
def test_given_up_in_every_phase(when, how, n):
    engine = fake_engine(max_chunk=8, max_running=4)
    steps = {"queued": 0, "prefill": 1, "decode": 5}[when]

    async def main():
        service.pause()
        stream = await service.submit(list(range(20)), params(30, n=n))
        reader = asyncio.create_task(read(stream))
        service.step(steps)
        while engine.scheduler.step < steps:
            await asyncio.sleep(0.002)
        state = await service.snapshot()
        assert len(state.running) == (0 if when == "queued" else n if when == "decode" else 1)
        await asyncio.sleep(0.005)  # the reader has read what there is
        if how == "abort":
            service.abort(stream.request_id)
            result = await reader
            assert [c.finish_reason for c in result.choices] == ["abort"] * n
            for choice in result.choices:
                right = fake_answer(list(range(20)), 3 if when == "decode" else 0, choice.index)
                assert list(choice.token_ids) == right
        else:
            if how == "close":
                stream.close()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        while (await service.snapshot()).sequences:
            await asyncio.sleep(0.002)
        assert idle(engine)  # still paused: its blocks were free at once
        service.resume()
        await idle_again(service, engine)

    with serving(engine) as service:
        in_loop(main)


def test_an_abort_during_a_step_takes_effect_after_it():
    engine = fake_engine()
    gate = Gate(engine)

    async def main():
        gate.close()
        stream = await service.submit([1, 2, 3], params(50))
        await gate.reached()
        service.abort(stream.request_id)
        gate.open()
        result = await read(stream)
        assert result.finish_reason == "abort"
        assert list(result.token_ids) == fake_answer([1, 2, 3], len(result.token_ids))
        assert len(result.token_ids) <= 1
        await idle_again(service, engine)

    with serving(engine) as service:
        in_loop(main)


def test_aborts_of_ended_and_unknown_requests_are_ignored():
    async def main():
        stream = await service.submit([1], params(2))
        await read(stream)
        for request_id in (stream.request_id, "r999", "", "r1/0", "nonsense"):
            service.abort(request_id)
        stream.close()
        await idle_again(service, service.engine)

    with serving() as service:
        in_loop(main)


@pytest.mark.parametrize("carried_out", [False, True])
def test_cancelled_during_submit(carried_out):
    """Before the thread took the command, and after it did but before the caller heard of it."""
    engine = fake_engine()
    gate = Gate(engine)

    async def main():
        gate.close()
        first = await service.submit([1], params(20))
        await gate.reached()
        late = asyncio.create_task(service.submit([2], params(400)))
        await asyncio.sleep(0)
        assert not late.done()
        if carried_out:
            gate.open()
            for _ in range(2000):  # this loop is busy: it does not hear of it
                if engine._arrivals == 2:
                    break
                time.sleep(0.001)
            assert engine._arrivals == 2
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        gate.open()
        await read(first)
        await idle_again(service, engine)
        assert engine._arrivals == 2 + carried_out

    with serving(engine) as service:
        in_loop(main)


def test_a_stream_dropped_without_reading_it_is_given_up():
    async def main():
        for _ in range(20):
            await service.submit([1, 2], params(500))
        await idle_again(service, service.engine)
        assert (await service.snapshot()).totals.abort > 0

    with serving(num_blocks=400) as service:
        in_loop(main, 10)


def test_what_a_lagging_reader_missed_can_be_drained():
    async def main():
        stream = await service.submit([4, 5], params(10))
        await asyncio.sleep(0)
        while (await service.snapshot()).sequences:
            await asyncio.sleep(0.005)
        chunks = stream.drain()
        assert [t for c in chunks for t in c.token_ids] == fake_answer([4, 5], 10)
        assert chunks[-1].result is not None
        assert [chunk async for chunk in stream] == []

    with serving() as service:
        in_loop(main)


# --- event loops ----------------------------------------------------------------------------------------------------


def test_two_event_loops_at_once():
    engine = fake_engine(max_running=4)

    def caller(first):
        async def main():
            answers = await asyncio.gather(*(ask(service, [first, i], params(20)) for i in range(20)))
            results[first] = [list(a.token_ids) for a in answers]

        in_loop(main)

    with serving(engine) as service:
        results: dict[int, list[list[int]]] = {}
        threads = [threading.Thread(target=caller, args=(first,)) for first in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for first in (1, 2):
        assert results[first] == [fake_answer([first, i], 20) for i in range(20)]


def test_a_closed_event_loop_gives_up_its_requests_and_nobody_elses():
    engine = fake_engine(num_blocks=200)
    gate = Gate(engine)

    async def leave():
        service.pause()
        streams.append(await service.submit([1], params(400)))
        streams.append(await service.submit([2], params(400, n=2)))
        gate.close()
        service.resume()
        await gate.reached()

    async def stay():
        answer = asyncio.create_task(ask(service, [3], params(30)))
        await asyncio.sleep(0)
        gate.open()
        assert list((await answer).token_ids) == fake_answer([3], 30)
        await idle_again(service, engine)

    streams: list = []  # kept: nobody closes them
    with serving(engine) as service:
        in_loop(leave)
        in_loop(stay)
    assert engine.snapshot().totals.abort == 3


def test_a_batch_of_prompts_is_taken_whole_or_not_at_all():
    async def main():
        with pytest.raises(ValueError, match="at least one prompt"):
            await service.submit_all([], params())
        for bad in ([], ["x"]):  # a user's error, and a caller's
            with pytest.raises((UserError, TypeError, ValueError)):
                await service.submit_all([[1, 2], [3], bad], params(500))
        state = await service.snapshot()
        assert not state.sequences
        assert not service._live
        assert list((await ask(service, [8], params(9))).token_ids) == fake_answer([8], 9)

    with serving() as service:
        in_loop(main)
