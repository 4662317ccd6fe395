"""Runs a plan: one flat batch through the model, the wanted rows through the sampler. Moves nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from mini_infer.batch import Batch, make_batch
from mini_infer.commit import Answer
from mini_infer.observe.events import TokenLogprob
from mini_infer.sampling.rows import SampleRow, Verdict
from mini_infer.scheduler.plan import Slice, StepPlan
from mini_infer.scheduler.sequence import Sequence
from mini_infer.speculative.proposer import Drafts

if TYPE_CHECKING:
    from mini_infer.sampling.distribution import Categorical


class Runner(Protocol):
    """A model with its KV. `run` gives one row of hidden states per row of `batch.logit_rows`, indexable by lists."""

    def run(self, batch: Batch) -> Any: ...

    def logits(self, hidden: Any) -> Any: ...

    def finite(self, hidden: Any) -> Seq[bool]: ...

    def zero_blocks(self, blocks: Seq[int]) -> None: ...


class Resolver(Protocol):
    def resolve(
        self,
        logits: Any,
        rows: Seq[SampleRow],
        q: Mapping[str, Seq[Categorical]] | None = None,
        *,
        explain: bool = False,
    ) -> list[Verdict]: ...


@dataclass(frozen=True, slots=True)
class Result:
    """What a plan's forward pass gave, by sequence id; `times` in seconds: forward, sample."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    scores: Mapping[str, Seq[TokenLogprob]] = field(default_factory=dict)  # of the prompt tokens after a chunk's rows
    times: tuple[float, float] = (0.0, 0.0)


def execute(
    plan: StepPlan,
    sequences: Mapping[str, Sequence],
    answers: Mapping[str, Answer],
    runner: Runner,
    sampler: Resolver,
    block_size: int,
    *,
    drafts: Drafts | None = None,
    explain: bool = False,
) -> Result:
    """Run the batch, drafts included, and resolve it.

    A row that fails by itself has a verdict with an error; all else raises. `explain`: for an observer.
    """
    if not plan.slices:
        return Result()
    drafted = drafts.tokens if drafts is not None else {}
    rows: list[SampleRow] = []
    sampled: list[int] = []  # rows of `hidden` that are drawn from
    unread: dict[str, int] = {}  # the last row of each slice that nobody draws from
    scored: list[tuple[Sequence, Slice, int]] = []  # chunks whose prompt rows are scored, from that row on
    end = 0
    for s in plan.slices:
        seq = sequences[s.seq_id]
        if s.rows == "all":
            scored.append((seq, s, end))
        end += {"all": s.n_new, "last": 1, "none": 0}[s.rows]
        if s.start + s.n_new == seq.num_tokens and seq.max_tokens:
            mine = drafted.get(s.seq_id, ())[: s.n_draft]
            rows += sample_rows(seq, answers[seq.seq_id].stop_ids, len(sampled), mine)
            sampled += range(end - 1, end + len(mine))
            end += len(mine)
        else:
            unread[s.seq_id] = end - 1
    began = perf_counter()
    hidden = runner.run(make_batch(plan, sequences, drafted, block_size))
    logits = runner.logits(hidden if len(sampled) == end else hidden[sampled]) if rows else None
    ran = perf_counter()
    q = drafts.q if drafts is not None else None
    verdicts = {v.seq_id: v for v in sampler.resolve(logits, rows, q, explain=explain)} if rows else {}
    if (
        unread
    ):  # attention hands a NaN on to every later row: none is published, or left behind, in an unfinished prompt
        for seq_id, finite in zip(unread, runner.finite(hidden[list(unread.values())]), strict=True):
            if not finite:
                verdicts[seq_id] = Verdict(seq_id, error="the model's states are not finite", non_finite=True)
    scores: dict[str, Seq[TokenLogprob]] = {}
    for seq, s, at in scored:
        try:
            scores[seq.seq_id] = _prompt_scores(hidden[at : at + s.n_new], seq, s, runner.logits)
        except ArithmeticError as error:  # a prompt row that is not finite is its own request's fault
            verdicts[seq.seq_id] = Verdict(seq.seq_id, error=str(error), non_finite=True)
    return Result(verdicts, scores, (ran - began, perf_counter() - ran))


def sample_rows(seq: Sequence, stop_ids: frozenset[int], row: int, drafts: tuple[int, ...] = ()) -> list[SampleRow]:
    """Who draws from this row: the sequence itself, or each choice that will be forked from it."""
    return [
        SampleRow(
            seq_id=seq.choice_id(choice),
            row=row,
            params=seq.params,
            seed=seq.seed,
            choice=choice,
            position=seq.num_tokens,
            num_prompt=seq.num_prompt,
            tokens=seq.tokens,
            stop_ids=stop_ids,
            drafts=drafts,
        )
        for choice in range(seq.choice, seq.choice + seq.n)
    ]


def _prompt_scores(hidden: Any, seq: Sequence, s: Slice, logits_of: Callable[[Any], Any]) -> list[TokenLogprob]:
    """Row p scores token p + 1; the last prompt row scores none, it is drawn from."""
    from mini_infer.sampling.prompt_logprobs import prompt_logprobs

    following = seq.tokens[s.start + 1 : min(s.start + s.n_new + 1, seq.num_prompt)]
    return prompt_logprobs(hidden, following, seq.params.prompt_logprobs or 0, logits_of)
