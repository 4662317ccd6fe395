"""`fold`, rule by rule, against states written out by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict, replace

from mini_infer.observe.events import (
    Admitted,
    Arrived,
    BlockMove,
    Control,
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
    encode,
)
from mini_infer.observe.state import KEPT_FINISHED, BlockState, EngineState, Gap, SequenceState, Totals, fold, fold_all
from tests.observe.story import INFO, STORY, A, B, C, empty


def seq(seq_id: str = "a", prompt: tuple[int, ...] = A, **fields: object) -> SequenceState:
    values = {"request_id": seq_id, "choice": 0, "n": 1, "priority": 0, "arrival": 0, "max_tokens": 0}
    return SequenceState(seq_id=seq_id, prompt=prompt, **{**values, **fields})


def state(*sequences: SequenceState, **fields: object) -> EngineState:
    return replace(empty(), sequences={s.seq_id: s for s in sequences}, **fields)


def after(before: EngineState, **report: object) -> EngineState:
    return fold(before, StepReport(before.seq + 1, before.step + 1, 0.0, **report))


def counted(before: EngineState, now: EngineState) -> dict[str, int]:
    """The totals that moved, but for the number of the step."""
    old, new = asdict(before.totals), asdict(now.totals)
    return {name: new[name] - old[name] for name in new if name != "steps" and new[name] != old[name]}


def until(number: int) -> EngineState:
    """The story's state after report `number`."""
    return fold_all(empty(), STORY[:number])


# --- the rules, one by one --------------------------------------------------------------------------------------------


def test_an_arrival_is_a_waiting_sequence_of_choice_0():
    before = state()
    now = after(before, arrived=(Arrived("r/0", "r", (1, 2, 3), 7, -2, 3, 40),))
    assert now.sequences == {"r/0": SequenceState("r/0", "r", 0, 3, -2, 7, 40, (1, 2, 3))}
    assert not now.sequences["r/0"].running
    assert now.sequences["r/0"].cached is None
    assert counted(before, now) == {"requests": 1}


def test_a_preempted_sequence_loses_its_rows_and_remembers_how_many():
    before = state(seq(running=True, num_computed=9, num_computed_draft=5, preemptions=1, cached=4, k=2))
    now = after(before, preempted=(Preempted("a", 9, 3, "b"),))
    assert now.sequences["a"] == seq(preemptions=2, lost=9, cached=4)
    assert counted(before, now) == {"preemptions": 1}


def test_the_first_admission_counts_the_prompt_and_its_hit():
    before = state(seq(wait=Wait("ORDER", behind="x")))
    miss = Miss("DIFF", 4, (14,), (19,))
    now = after(before, admitted=(Admitted("a", 4, True, miss),))
    assert now.sequences["a"] == seq(running=True, cached=4, miss=miss, num_computed=4)
    assert counted(before, now) == {"prompt_tokens": 6, "cached_tokens": 4}


def test_a_later_admission_counts_only_what_must_be_computed_again():
    first = {"cached": 0, "miss": Miss("NEVER_SEEN")}
    before = state(seq(lost=9, preemptions=1, **first), seq("b", lost=3, cached=0))
    now = after(before, admitted=(Admitted("a", 4, False), Admitted("b", 4, False)))
    assert now.sequences["a"] == seq(running=True, num_computed=4, preemptions=1, **first)
    assert now.sequences["b"].lost == 0
    assert counted(before, now) == {"recomputed_tokens": 5}  # b hit more than it had computed: nothing


def test_a_fork_copies_the_parent_but_for_table_and_output():
    parent = seq("c/0", C, request_id="c", n=2, max_tokens=9, running=True, cached=4, miss=Miss("PARTIAL", 4), k=3)
    before = state(replace(parent, num_computed=4, table=(0, 1)))
    now = after(
        before,
        forked=(Forked("c/0", "c/1", 1),),
        outputs=(Output("c/0", (50,), "x"), Output("c/1", (51,), "y")),
        sched=(Scheduled("c/0", 4, 1, 0, 5),),
        blocks=(BlockMove("share", 0, "c/1", 0), BlockMove("share", 1, "c/1", 1)),
    )
    parent = replace(parent, n=1, num_computed=5, table=(0, 1))
    assert now.sequences["c/0"] == replace(parent, output=(50,), text="x")
    assert now.sequences["c/1"] == replace(parent, seq_id="c/1", choice=1, output=(51,), text="y")
    assert counted(before, now) == {"computed_tokens": 1, "output_tokens": 2}


def test_outputs_are_appended():
    before = state(seq(output=(1,), text="a"), seq("b"))
    now = after(before, outputs=(Output("a", (2, 3), "bc"), Output("b", (), "")))
    assert now.sequences["a"] == seq(output=(1, 2, 3), text="abc")
    assert now.sequences["b"] == seq("b")
    assert counted(before, now) == {"output_tokens": 2}


@pytest.mark.parametrize(
    ("given", "sched", "emitted", "computed"),
    [
        ((), Scheduled("a", 0, 4, 0, 6), 0, 4),  # a chunk of the prompt
        ((), Scheduled("a", 4, 2, 0, 6), 1, 6),  # its last
        ((20,), Scheduled("a", 6, 1, 0, 7), 1, 7),  # a decode
        ((20,), Scheduled("a", 6, 1, 4, 7), 5, 11),  # a verify, everything accepted
        ((20,), Scheduled("a", 6, 1, 4, 7), 3, 9),  # two of four accepted
        ((20,), Scheduled("a", 6, 1, 4, 7), 1, 7),  # none accepted
        ((20, 21), Scheduled("a", 4, 2, 0, 8), 0, 6),  # a resume in chunks
    ],
)
def test_rows_of_rejected_drafts_are_not_computed(given, sched, emitted, computed):
    before = state(seq(running=True, output=given))
    now = after(before, outputs=(Output("a", tuple(range(emitted))),), sched=(sched,))
    assert now.sequences["a"].num_computed == computed
    assert now.totals.computed_tokens == sched.n_new + sched.n_draft


def test_tables_follow_the_moves_in_their_order():
    before = state(seq(table=(1,)), seq("b", table=(1, 5)))
    now = after(
        before,
        blocks=(
            BlockMove("share", 2, "a", 1), BlockMove("alloc", 3, "a", 2), BlockMove("free", 3, "a", 2),
            BlockMove("alloc", 4, "a", 2), BlockMove("cow", 6, "a", 0), BlockMove("free", 5, "b", 1),
        ),
    )  # fmt: skip
    assert now.sequences["a"].table == (6, 2, 4)
    assert now.sequences["b"].table == (1,)
    assert now.holders == {6: ["a"], 2: ["a"], 4: ["a"], 1: ["b"]}


@pytest.mark.parametrize("index_known", [True, False])
def test_a_published_block_has_its_tokens_from_prompt_and_output(index_known):
    before = state(seq(output=(20, 22), table=(7, 5, 6)))
    now = after(
        before,
        outputs=(Output("a", (23, 24, 25, 26)),),
        blocks=tuple(
            BlockMove("hash", block, "a", i if index_known else -1, f"k{i}", f"k{i - 1}")
            for i, block in enumerate((7, 5, 6))
        ),
    )
    assert now.blocks == {
        7: BlockState("k0", "k-1", (10, 11, 12, 13)),
        5: BlockState("k1", "k0", (14, 15, 20, 22)),
        6: BlockState("k2", "k1", (23, 24, 25, 26)),
    }


def test_evicted_and_unpublished_blocks_lose_their_key_and_only_evictions_count():
    kept = BlockState("k2", "", (1, 2, 3, 4))
    before = state(blocks={0: BlockState("k0", "", ()), 1: BlockState("k1", "", ()), 2: kept})
    now = after(before, blocks=(BlockMove("evict", 0), BlockMove("unhash", 1)))
    assert now.blocks == {2: kept}
    assert counted(before, now) == {"evictions": 1}


def test_reasons_and_k():
    before = state(seq(wait=Wait("PAUSED")), seq("b"), seq("c", k=4))
    now = after(
        before,
        waiting=(Waiting("a"), Waiting("b", Wait("BLOCKS", 3, 1))),
        k=(KChoice("c", 0, "ADAPTIVE"), KChoice("a", 2)),
    )
    assert [now.sequences[i].wait for i in "abc"] == [None, Wait("BLOCKS", 3, 1), None]
    assert [(now.sequences[i].k, now.sequences[i].k_why) for i in "abc"] == [(2, None), (0, None), (0, "ADAPTIVE")]


def test_rounds_are_counted_as_drafted_and_kept():
    before = state(seq())
    now = after(before, spec=(Round("a", (1, 2, 3), 4, 2, 9, False), Round("a", (4,), 1, 1, 5, True)))
    assert counted(before, now) == {"rounds": 2, "drafted": 5, "accepted": 3}


@pytest.mark.parametrize("reason", ["stop", "length", "abort", "error"])
def test_an_ended_sequence_leaves_with_its_last_tokens_counted(reason):
    before = state(seq(table=(3,)), seq("b"))
    end = Finished("a", reason, Usage(6, 1))
    now = after(before, outputs=(Output("a", (9,), "x", end),), blocks=(BlockMove("free", 3, "a", 0),))
    assert list(now.sequences) == ["b"]
    assert now.finished == (end,)
    assert counted(before, now) == {reason: 1, "output_tokens": 1}


def test_only_the_last_ended_sequences_are_kept():
    now = empty()
    for i in range(KEPT_FINISHED + 5):
        end = Finished(str(i), "abort", Usage(1, 0))
        now = after(now, arrived=(Arrived(str(i), str(i), (1,), i),), outputs=(Output(str(i), finished=end),))
    assert [f.seq_id for f in now.finished] == [str(i) for i in range(5, KEPT_FINISHED + 5)]
    assert now.totals.abort == KEPT_FINISHED + 5


def test_pause_and_resume():
    paused = after(state(), control=(Control("resume"), Control("pause")))
    assert paused.paused
    assert after(paused).paused
    assert after(paused, control=(Control("reset_cache"),)).paused
    assert not after(paused, control=(Control("resume"),)).paused


def test_a_fault_empties_tables_and_keys():
    before = state(
        seq(table=(0, 1), running=True), seq("b", table=(0,)), blocks={0: BlockState("k", "", ())}, paused=True
    )
    end = Finished("a", "error", Usage(6, 0))
    now = after(
        before, control=(Control("fault", "why"),), outputs=(Output("a", finished=end),), pool=PoolCount(0, 0, 8)
    )
    assert now.sequences == {"b": seq("b")}
    assert now.blocks == {}
    assert now.paused
    assert counted(before, now) == {"faults": 1, "error": 1}


def test_pool_and_pieces():
    before = replace(empty(), pool=PoolCount(1, 2, 5), pieces={1: "a"})
    assert after(before).pool == PoolCount(1, 2, 5)
    now = after(before, pool=PoolCount(2, 2, 4), pieces={2: "b"})
    assert now.pool == PoolCount(2, 2, 4)
    assert now.pieces == {1: "a", 2: "b"}


def test_a_report_without_a_step_keeps_the_number():
    now = fold(replace(empty(), step=5, totals=Totals(steps=5)), StepReport(1, 5, 1.0, stepped=False))
    assert (now.seq, now.step, now.totals.steps) == (1, 5, 5)


# --- a whole story ----------------------------------------------------------------------------------------------------


def test_the_story_in_the_middle():
    now = until(5)
    assert now.pool == PoolCount(6, 0, 2)
    assert now.blocks == {
        0: BlockState("k0", "root", (10, 11, 12, 13)),
        1: BlockState("k1", "k0", (14, 15, 20, 22)),
        3: BlockState("k3", "root", (40, 41, 42, 43)),
    }
    assert [s.seq_id for s in now.running] == ["c/0", "c/1", "a", "b"]  # c has the better priority
    assert now.waiting == []
    b = now.sequences["b"]
    assert (b.prompt, b.output, b.text, b.table) == (B, (21, 24), "it", (0, 5))
    assert (b.num_computed, b.cached, b.preemptions, b.lost, b.k_why) == (6, 4, 1, 0, None)
    assert now.sequences["a"].num_computed == 10
    assert now.sequences["c/1"].table == now.sequences["c/0"].table == (3, 4)
    assert now.holders[3] == ["c/0", "c/1"]


def test_the_story_at_its_end():
    now = until(len(STORY))
    assert now.sequences == {}
    assert now.blocks == {}
    assert [(f.seq_id, f.reason) for f in now.finished] == [
        ("a", "stop"), ("b", "abort"), ("c/0", "length"), ("c/1", "error"), ("d", "error"),
    ]  # fmt: skip
    assert now.totals == Totals(
        steps=7, requests=4, prompt_tokens=19, cached_tokens=4, computed_tokens=30, output_tokens=16, preemptions=1,
        recomputed_tokens=3, evictions=1, faults=1, rounds=1, drafted=2, accepted=1, stop=1, length=1, abort=1, error=2,
    )  # fmt: skip
    assert not now.paused
    assert now.info == INFO


def test_states_before_do_not_change_and_unchanged_values_are_shared():
    states, before = [empty()], [encode(empty())]
    for report in STORY:
        states.append(fold(states[-1], report))
        before.append(encode(states[-1]))
    assert [encode(s) for s in states] == before
    waiting = states[4].sequences["c/0"]
    assert fold(states[4], StepReport(5, 5, 0.0)).sequences["c/0"] is waiting
    assert fold(states[4], StepReport(5, 5, 0.0)).blocks is states[4].blocks


def test_sabotage_a_dropped_report_is_noticed():
    for missing in range(len(STORY) - 1):
        kept = STORY[:missing] + STORY[missing + 1 :]
        with pytest.raises(Gap) as gap:
            fold_all(empty(), kept)
        assert (gap.value.expected, gap.value.got) == (missing + 1, missing + 2)


def test_sabotage_a_dropped_report_changes_the_state_even_if_the_numbers_hide_it():
    right = until(len(STORY))
    for missing in range(len(STORY)):
        kept = [r for i, r in enumerate(STORY) if i != missing]
        renumbered = [replace(r, seq=i) for i, r in enumerate(kept, start=1)]
        try:
            wrong = fold_all(empty(), renumbered)
        except ValueError:
            continue
        assert replace(wrong, seq=right.seq) != right


@pytest.mark.parametrize("seq_id", ["nobody", "a"])
def test_a_report_that_does_not_fit_is_refused_with_its_number(seq_id):
    before = state(seq(table=(1,)))
    with pytest.raises(ValueError, match="report 1 does not fit the state"):
        after(before, blocks=(BlockMove("free", 9, seq_id, 0),))
    with pytest.raises(ValueError, match="report 1 does not fit the state"):
        after(before, blocks=(BlockMove("evict", 4),))


def test_a_report_twice_is_a_gap_too():
    with pytest.raises(Gap, match="expected report 3, got 2"):
        fold(until(2), STORY[1])
