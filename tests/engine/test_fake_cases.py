"""Cases of scheduler, cache and prefix cache, on the model without tensors (block size 16 where the case counts)."""

from __future__ import annotations

import pytest

from mini_infer.errors import UserError
from mini_infer.intake import ContextLengthError
from mini_infer.observe.events import Miss
from mini_infer.sampling.params import SamplingParams
from tests.support.fake import VOCAB, fake_answer, fake_engine, idle, prompts
from tests.support.watch import Watch


def cached(watch: Watch, *args, **kwargs) -> int:
    """Tokens of a new request's prompt that were served from the cache, once it is answered."""
    request_id = watch.ask(*args, **kwargs)
    watch.run()
    return watch.finished[request_id].usage.cached_tokens


@pytest.mark.parametrize("length, hit", [(16, 0), (31, 16), (32, 16), (33, 32), (48, 32)])
def test_S01_an_all_hit_prompt_computes_its_last_block_again(length, hit):
    watch = Watch(fake_engine(block_size=16))
    (prompt,) = prompts(1, length)
    assert cached(watch, prompt) == 0
    assert cached(watch, prompt) == hit
    assert watch.answer("r1") == watch.answer("r2")
    (admitted,) = [a for r in watch.reports for a in r.admitted if a.seq_id == "r2"]
    assert admitted.miss.kind == ("PARTIAL" if length % 16 else "LAST_TOKEN")


def test_S01_the_block_computed_again_is_one_of_its_own():
    watch = Watch(fake_engine(block_size=16))
    (prompt,) = prompts(1, 32)
    cached(watch, prompt, max_tokens=1)
    blocks = dict(watch.state.blocks)
    cached(watch, prompt, max_tokens=1)
    assert watch.state.blocks == blocks  # the first copy stays canonical, and is not written


def test_S04_fifty_aborts_in_mid_stream_leave_nothing():
    watch = Watch(fake_engine(num_blocks=40))
    (prompt,) = prompts(1, 30)
    for i in range(50):
        request_id = watch.ask(prompt[i % 7 :], max_tokens=100)
        for _ in range(3):
            watch.step()
        assert watch.engine.abort(request_id)
        watch.flush()
        assert watch.finished[request_id].reason == "abort"
        assert idle(watch.engine)
    watch.ask(prompt, max_tokens=20)
    watch.run()


def test_S04_an_abort_takes_effect_at_once_wherever_the_request_is():
    watch = Watch(fake_engine(num_blocks=10, block_size=4, max_running=2, max_batch_tokens=8, max_chunk=4))
    reading, waiting, decoding = *prompts(2, 12), [1]
    watch.ask(decoding, max_tokens=20)
    watch.ask(reading)
    watch.ask(waiting)
    watch.step()
    watch.step()
    assert {s.seq_id: s.running for s in watch.state.ordered} == {"r1": True, "r2": True, "r3": False}
    for request_id in ("r2", "r3", "r1"):
        assert watch.engine.abort(request_id)
        assert not watch.engine.abort(request_id)
        assert watch.engine.is_finished(request_id)
        watch.flush()
        assert watch.last.aborted == (request_id,)
    assert idle(watch.engine)
    with pytest.raises(KeyError):
        watch.engine.abort("r4")


def test_S06_refused_requests_leave_nothing():
    engine = fake_engine(context=40)
    watch = Watch(engine)
    good = prompts(20, 9)
    refused = 0
    for i in range(220):
        if i % 11 == 0:
            watch.ask(good[i // 11], max_tokens=3)
            continue
        with pytest.raises(ContextLengthError):
            watch.ask(prompts(1, 41 + i)[0])
        refused += 1
        if i % 5 == 0:
            watch.step()
    watch.run()
    assert (refused, len(watch.finished)) == (200, 20)
    assert idle(engine)
    assert engine.recorder.totals["requests"] == 20


@pytest.mark.parametrize(
    "prompt, match",
    [([], "prompt is empty"), ([1, VOCAB], f"token id {VOCAB}"), ([-1], "token id -1")],
)
def test_S06_what_is_no_prompt_is_refused_in_one_line(prompt, match):
    engine = fake_engine()
    with pytest.raises(UserError, match=match) as refused:
        engine.add_request(prompt)
    assert "\n" not in str(refused.value)
    assert not engine.has_work


def test_S11_answers_do_not_depend_on_the_neighbours():
    watch = Watch(fake_engine(num_blocks=200, max_running=12, max_batch_tokens=32, max_chunk=16))
    for prompt, length in zip(prompts(12, 70), (1, 7, 13, 16, 17, 24, 32, 33, 48, 55, 64, 70), strict=True):
        watch.ask(prompt[:length], max_tokens=40)
    watch.run()  # every answer is held against `fake_answer`
    assert len(watch.finished) == 12


def test_S13_finished_requests_can_be_evicted():
    watch = Watch(fake_engine(num_blocks=12, block_size=16))
    for prompt in prompts(30, 100):
        watch.ask(prompt, max_tokens=4)
        watch.run()
    assert watch.state.totals.evictions > 100
    assert idle(watch.engine)


def test_S15_cached_tokens_are_what_was_not_computed():
    (prompt,) = prompts(1, 50)
    last_changed = [*prompt[:-1], (prompt[-1] + 1) % VOCAB]
    first_changed = [(prompt[0] + 1) % VOCAB, *prompt[1:]]
    watch = Watch(fake_engine(block_size=16))
    found = [cached(watch, p) for p in (prompt, prompt, last_changed, first_changed)]
    off = Watch(fake_engine(block_size=16, prefix_cache=False))
    cached(off, prompt)
    assert [*found, cached(off, prompt)] == [0, 48, 48, 0, 0]


def test_S15_a_prefix_of_600_tokens_serves_592_and_exactly_the_others_are_computed():
    watch = Watch(fake_engine(num_blocks=100, block_size=16, context=1024))
    shared, tails = prompts(1, 600)[0], prompts(2, 40, seed=5)
    cached(watch, [*shared, *tails[0]], max_tokens=2)
    before, reports = watch.engine.runner.tokens, len(watch.reports)
    assert cached(watch, [*shared, *tails[1]], max_tokens=2) == 592
    computed = [(s.start + i) for r in watch.reports[reports:] for s in r.sched for i in range(s.n_new)]
    assert computed == list(range(592, 641))  # 48 of the prompt, and one of the two answered tokens
    assert watch.engine.runner.tokens - before == 49


def test_S15_a_prompt_can_be_shared_while_it_is_still_being_read():
    watch = Watch(fake_engine(num_blocks=64, block_size=4, max_running=4, max_batch_tokens=8, max_chunk=8))
    (prompt,) = prompts(1, 40)
    watch.ask(prompt, max_tokens=1)
    watch.step()
    watch.step()
    watch.ask(prompt, max_tokens=1)
    watch.run()
    assert watch.finished["r2"].usage.cached_tokens >= 16


def test_S15_a_follow_up_hits_prompt_and_answer_but_not_the_newest_token():
    watch = Watch(fake_engine(block_size=4))
    (prompt,) = prompts(1, 10)
    cached(watch, prompt, max_tokens=7)
    turn = [*prompt, *watch.answer("r1")]
    assert len(turn) == 17
    assert cached(watch, [*turn, 1, 2, 3, 4]) == 16
    assert cached(watch, turn[:16], max_tokens=1) == 12


def test_S15_hits_are_counted_at_the_first_admission_only():
    watch = Watch(fake_engine(num_blocks=10, block_size=4))
    for prompt in prompts(2, 15):
        watch.ask(prompt, max_tokens=10)
    watch.run()
    assert watch.state.totals.preemptions == 1
    assert watch.state.totals.cached_tokens == 0
    assert watch.finished["r2"].usage.cached_tokens == 0


def test_why_each_request_missed():
    """Every reason of the closed set, as an engine meets it."""
    watch = Watch(fake_engine(num_blocks=8, block_size=4))
    (base,) = prompts(1, 9)

    def miss(prompt: list[int], **more) -> Miss:
        request_id = watch.ask(prompt, max_tokens=1, **more)
        watch.run()
        return next(a.miss for r in watch.reports for a in r.admitted if a.seq_id == request_id)

    assert miss(base) == Miss("NEVER_SEEN", 0)
    assert miss(base) == Miss("PARTIAL", 8)
    assert miss(base[:8]) == Miss("LAST_TOKEN", 4)
    assert miss(base, cache_salt="another") == Miss("SALT", 0)
    changed = [*base[:6], (base[6] + 1) % VOCAB, *base[7:]]
    assert miss(changed) == Miss("DIFF", 6, tuple(changed[6:8]), tuple(base[6:8]))
    watch.ask(prompts(1, 31, seed=7)[0], max_tokens=1)
    watch.run()  # all 8 blocks: everything cached is evicted
    step = watch.state.step
    assert miss(base) == Miss("EVICTED", 0, step=step)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_S18_block_edges(prefix_cache):
    """7 prompt lengths, 4 answer lengths, each twice: 56 runs with the cache, 56 without."""
    watch = Watch(fake_engine(num_blocks=64, block_size=16, prefix_cache=prefix_cache))
    runs = 0
    for length in (1, 15, 16, 17, 31, 32, 33):
        for most in (1, 15, 16, 17):
            (prompt,) = prompts(1, length, seed=most)
            for again in range(2):
                hit = cached(watch, prompt, max_tokens=most)
                assert watch.answer(watch.request_ids[-1]) == fake_answer(prompt, most)
                if again:
                    assert hit == ((length - 1) // 16 * 16 if prefix_cache else 0)
                runs += 1
    assert runs == 56


def test_S21_partial_tails_do_not_push_cached_prefixes_out():
    watch = Watch(fake_engine(num_blocks=12, block_size=16))
    pair = prompts(2, 65)
    hits = [cached(watch, pair[i % 2], max_tokens=1) for i in range(10)]
    assert hits == [0, 0, *[64] * 8]
    assert watch.state.totals.evictions == 0


def test_L17_every_end_id_of_the_checkpoint_ends_an_answer():
    (prompt,) = prompts(1, 6)
    right = fake_answer(prompt, 20)
    nth = next(i for i in range(4, 20) if right[i] not in right[:i])
    watch = Watch(fake_engine(eos=[next(t for t in range(VOCAB) if t not in right), right[nth]]))
    watch.ask(prompt, max_tokens=20)
    watch.run()
    assert watch.answer("r1") == right[: nth + 1]  # the id counts as a token; it is no text
    assert (watch.finished["r1"].reason, watch.finished["r1"].stop) == ("stop", right[nth])


def test_L19_ignore_eos_ignores_every_one_of_them_but_not_the_requests_own():
    (prompt,) = prompts(1, 6)
    right = fake_answer(prompt, 20)
    engine = fake_engine(eos=[right[3], right[9]])
    request_id = engine.add_request(prompt, SamplingParams(temperature=0, ignore_eos=True, max_tokens=20))
    tokens = []
    while not engine.is_finished(request_id):
        tokens += [token for _, token in engine.step()]
    assert tokens == right
    nth = next(i for i in range(4, 20) if right[i] not in right[:i])
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=20, stop_token_ids=[right[nth]])
    request_id = engine.add_request(prompt, params)
    while not engine.is_finished(request_id):
        last = engine.step()
    assert (last.finished[0].reason, last.finished[0].usage.completion_tokens) == ("stop", nth + 1)


def test_the_loop_of_the_readme():
    engine = fake_engine()
    first = engine.add_request(prompt_tokens=[7, 8, 9], max_tokens=10)
    other = engine.add_request(prompt_tokens=[3], max_tokens=4)
    tokens = []
    while not engine.is_finished(first):
        for seq_id, new_token in engine.step():
            if seq_id == first:
                tokens.append(new_token)
    assert tokens == fake_answer([7, 8, 9], 10)
    assert engine.is_finished(other)
    assert list(engine.step()) == []
