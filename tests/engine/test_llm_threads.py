"""`LLM` shared by threads: each caller gets its own answer, whoever takes the steps."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mini_infer import LLM, SamplingParams
from tests.support.engines import Hooks, expected_greedy, tiny_engine
from tests.support.engines import prompt as tiny_prompt

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def llm():
    return LLM(engine=tiny_engine(text="chatml"))


def idle(llm):
    return not llm.engine.has_work and not llm._open and not llm._lock.locked()


def test_many_threads_share_one_and_each_gets_its_own_answer(llm):
    def ask(n):
        ids = tiny_prompt(n % 19 + 1, n)
        if n % 3 == 0:
            return [t for chunk in llm.stream(ids, GREEDY, raw=True) for t in chunk.token_ids]
        return list(llm.generate(ids, GREEDY).token_ids)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(48)))
    for n, answer in enumerate(answers):
        assert answer == expected_greedy(tiny_prompt(n % 19 + 1, n), 12), n
    assert idle(llm)


def test_no_two_threads_are_ever_in_a_step_together(llm):
    inside, most = [0], [0]
    step = llm.engine.step

    def counted():
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        try:
            return step()
        finally:
            inside[0] -= 1

    llm.engine.step = counted
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: llm.generate(tiny_prompt(5, n), GREEDY), range(24)))
    assert most == [1]


def test_a_thread_whose_answer_another_one_made_takes_no_step(llm):
    """The other thread asks while this one holds the engine; its answer comes with this one's steps."""
    hooks, others = Hooks(llm.engine), []

    def first_batch(batch):
        if not others:
            others.append(threading.Thread(target=lambda: got.extend(llm.generate([1, 2], GREEDY).token_ids)))
            others[0].start()

    got: list[int] = []
    hooks.before = first_batch
    assert list(llm.generate([3, 4], GREEDY).token_ids) == expected_greedy([3, 4], 12)
    others[0].join(60)
    assert got == expected_greedy([1, 2], 12)
    assert idle(llm)


def test_an_answer_dropped_in_the_middle_of_a_step_is_ended_before_the_next(llm):
    """The collector of garbage runs wherever it likes, also inside the engine."""
    forgotten = [llm.stream([7, 8], SamplingParams(temperature=0, max_tokens=200, ignore_eos=True), raw=True)]
    hooks = Hooks(llm.engine)
    hooks.before = lambda batch: forgotten.clear()
    assert list(llm.generate([3, 4], GREEDY).token_ids) == expected_greedy([3, 4], 12)
    assert idle(llm)
    assert sum(len(batch.spans) for batch in hooks.batches) < 30  # the dropped one did not run on
