"""A hand-written run of an engine with 8 blocks of 4 rows, in which everything that reports can say happens once."""

from __future__ import annotations

from mini_infer.observe.events import (
    Admitted,
    Arrived,
    BlockMove,
    Budget,
    Control,
    Durations,
    Finished,
    Forked,
    KChoice,
    Miss,
    Output,
    PoolCount,
    Preempted,
    Round,
    Scheduled,
    StepReport,
    Usage,
    Wait,
    Waiting,
)
from mini_infer.observe.state import EngineInfo, EngineState, Totals

INFO = EngineInfo("tiny", 8, 4, max_running=4, max_batch_tokens=8, max_chunk=4, max_model_len=64)
MS = Durations(schedule=0.5, draft=1.0, forward=6.0, sample=2.0, commit=0.5)  # 10 ms in all


def empty(seq: int = 0) -> EngineState:
    return EngineState(seq, 0, INFO, Totals(), PoolCount(0, 0, 8))


def ended(seq_id: str, reason: str, prompt: int, tokens: int, **more: object) -> Finished:
    return Finished(seq_id, reason, Usage(prompt, tokens), **more)


A, B, C = (10, 11, 12, 13, 14, 15), (10, 11, 12, 13, 30, 31), (40, 41, 42, 43, 44)

STORY = (
    # a is read in chunks of 4; b, whose first block is the same, finds no tokens left.
    StepReport(
        1, 1, 100.010, durations=MS, budget=Budget(4, 8, 1, 4), pool=PoolCount(1, 0, 7), num_waiting=1,
        arrived=(Arrived("a", "a", A, 0, t=99.999), Arrived("b", "b", B, 1, max_tokens=9, t=99.9995)),
        admitted=(Admitted("a", 0, miss=Miss("NEVER_SEEN")),),
        sched=(Scheduled("a", 0, 4, 0, 6),),
        waiting=(Waiting("b", Wait("TOKENS", have=0)),),
        blocks=(BlockMove("alloc", 0, "a", 0), BlockMove("hash", 0, "a", 0, "k0", "root")),
        pieces={10: "T", 11: "h"},
    ),
    # a's first token; b hits a's first block.
    StepReport(
        2, 2, 100.020, durations=MS, pool=PoolCount(3, 0, 5),
        outputs=(Output("a", (20,), "he"), Output("b", (21,), "it")),
        admitted=(Admitted("b", 4, miss=Miss("DIFF", 4, (30, 31), (14, 15))),),
        sched=(Scheduled("a", 4, 2, 0, 6), Scheduled("b", 4, 2, 0, 6)),
        blocks=(BlockMove("alloc", 1, "a", 1), BlockMove("share", 0, "b", 0), BlockMove("alloc", 2, "b", 1)),
        k=(KChoice("a", 2), KChoice("b", 0, "BUDGET")),
        pieces={20: "he", 21: "it"},
    ),
    # a verifies two drafts, one is right; the block reserved for the other goes back.
    StepReport(
        3, 3, 100.030, durations=MS, pool=PoolCount(3, 0, 5),
        outputs=(Output("a", (22, 23), "llo"), Output("b", (24,))),
        sched=(Scheduled("a", 6, 1, 2, 7), Scheduled("b", 6, 1, 0, 7)),
        blocks=(
            BlockMove("alloc", 3, "a", 2), BlockMove("free", 3, "a", 2), BlockMove("hash", 1, "a", 1, "k1", "k0"),
        ),
        spec=(Round("a", (22, 99), 2, 1, 23, False, (0.9, 0.1), (0.8, 0.4), (0.5, 0.7)),),
    ),
    # c comes with two choices; b loses its place to a.
    StepReport(
        4, 4, 100.050, durations=MS, pool=PoolCount(3, 0, 5), num_waiting=2,
        outputs=(Output("a", (25,), "!"),),
        arrived=(Arrived("c/0", "c", C, 2, -1, n=2, t=100.035),),
        preempted=(Preempted("b", lost=7, freed=2, cause="a"),),
        sched=(Scheduled("a", 8, 1, 0, 9),),
        waiting=(Waiting("b", Wait("COOLDOWN")), Waiting("c/0", Wait("BLOCKS", need=3, have=2))),
        blocks=(BlockMove("free", 2, "b", 1), BlockMove("free", 0, "b", 0), BlockMove("alloc", 2, "a", 2)),
    ),
    # c is read in one go and forks; b resumes on the block it shared.
    StepReport(
        5, 5, 100.060, durations=MS, pool=PoolCount(6, 0, 2),
        outputs=(Output("c/0", (50,), "x"), Output("c/1", (51,), "y"), Output("a", (26,))),
        admitted=(Admitted("c/0", 0, miss=Miss("NEVER_SEEN")), Admitted("b", 4, first=False)),
        forked=(Forked("c/0", "c/1", 1),),
        sched=(Scheduled("a", 9, 1, 0, 10), Scheduled("c/0", 0, 5, 0, 5), Scheduled("b", 4, 2, 0, 8)),
        blocks=(
            BlockMove("alloc", 3, "c/0", 0), BlockMove("alloc", 4, "c/0", 1), BlockMove("share", 0, "b", 0),
            BlockMove("alloc", 5, "b", 1), BlockMove("hash", 3, "c/0", 0, "k3", "root"),
            BlockMove("share", 3, "c/1", 0), BlockMove("share", 4, "c/1", 1),
        ),
    ),
    # The choices part: c/0 writes into a copy. a ends.
    StepReport(
        6, 6, 100.070, durations=MS, pool=PoolCount(4, 2, 2),
        outputs=(
            Output("a", (27,), "", ended("a", "stop", 6, 6, stop=27)), Output("b", (28,), "g"),
            Output("c/0", (52,), "x"), Output("c/1", (53,), "y"),
        ),
        sched=(
            Scheduled("a", 10, 1, 0, 11), Scheduled("b", 6, 2, 0, 8),
            Scheduled("c/0", 5, 1, 0, 6), Scheduled("c/1", 5, 1, 0, 6),
        ),
        blocks=(
            BlockMove("cow", 6, "c/0", 1), BlockMove("hash", 5, "b", 1, "k5", "k0"),
            BlockMove("free", 2, "a", 2), BlockMove("free", 1, "a", 1), BlockMove("free", 0, "a", 0),
        ),
        copies=((4, 6),),
    ),
    # Paused: news without a step. b is aborted, d comes; the prefix cache forgets a block.
    StepReport(
        7, 6, 100.200, stepped=False, pool=PoolCount(3, 1, 4), num_waiting=1,
        outputs=(Output("b", (), "", ended("b", "abort", 6, 3)),),
        arrived=(Arrived("d", "d", (60, 61), 3),),
        aborted=("b",),
        control=(Control("pause"), Control("reset_cache")),
        waiting=(Waiting("d", Wait("PAUSED")),),
        blocks=(BlockMove("free", 5, "b", 1), BlockMove("free", 0, "b", 0), BlockMove("unhash", 0)),
    ),
    # Resumed: d takes the block of a's evicted prefix. One choice of c ends.
    StepReport(
        8, 7, 100.300, durations=MS, pool=PoolCount(4, 1, 3),
        outputs=(
            Output("c/0", (54,), "x", ended("c/0", "length", 5, 3)), Output("c/1", (55,)), Output("d", (62,), "z"),
        ),
        admitted=(Admitted("d", 0, miss=Miss("PARTIAL")),),
        control=(Control("resume"),),
        sched=(Scheduled("c/0", 6, 1, 0, 7), Scheduled("c/1", 6, 1, 0, 7), Scheduled("d", 0, 2, 0, 2)),
        blocks=(
            BlockMove("evict", 1), BlockMove("alloc", 1, "d", 0), BlockMove("free", 6, "c/0", 1),
            BlockMove("free", 3, "c/0", 0),
        ),
    ),
    # A fault: everything ends, the pool is rebuilt.
    StepReport(
        9, 7, 100.310, stepped=False, pool=PoolCount(0, 0, 8),
        outputs=(
            Output("c/1", (), "", ended("c/1", "error", 5, 3, error="the plan failed")),
            Output("d", (), "", ended("d", "error", 2, 1, error="the plan failed")),
        ),
        control=(Control("fault", "the plan failed"),),
    ),
)  # fmt: skip
