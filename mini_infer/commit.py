"""What a step's verdicts become: tokens cut at the end of the answer, text, forks, ends.

The cut comes before any counter moves: tokens after an end token, a stop string or the last allowed token were never
part of the answer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from mini_infer.cache.block_table import BlockTable
from mini_infer.observe.events import Finished, FinishReason, KReason, Output, TokenLogprob, Usage
from mini_infer.recorder import Recorder
from mini_infer.sampling.rows import Verdict
from mini_infer.scheduler.continuous import ContinuousScheduler
from mini_infer.scheduler.integrity import check_idle
from mini_infer.scheduler.plan import Slice, StepPlan
from mini_infer.scheduler.sequence import Sequence
from mini_infer.speculative.drafting import commit_drafts
from mini_infer.text.stream import TextStream

log = logging.getLogger("mini_infer")


@dataclass(slots=True)
class Answer:
    """The text side of one sequence."""

    stop_ids: frozenset[int]  # ids that end it: the checkpoint's own, unless ignored, and the request's
    stream: TextStream | None = None  # None without a tokenizer: ids only
    text: str = ""
    prompt_scores: list[TokenLogprob | None] = field(default_factory=lambda: [None])  # nothing precedes the first token


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a verdict that belongs to the answer."""

    tokens: tuple[int, ...]
    text: str
    reason: FinishReason | None = None
    stop: str | int | None = None


def cut(seq: Sequence, answer: Answer, tokens: tuple[int, ...], max_model_len: int) -> Cut:
    """Take `tokens` one by one until the answer ends. Moves only `answer.stream`.

    The end token that stopped an answer is one of its tokens, but not of its text. Neither it nor a stop string ends
    an answer that is still shorter than `min_tokens`.
    """
    texts: list[str] = []
    reason: FinishReason | None = None
    stop: str | int | None = None
    taken = 0
    for token in tokens:
        taken += 1
        length = seq.num_tokens - seq.num_prompt + taken
        if token in answer.stop_ids:
            reason, stop = "stop", token
        elif answer.stream is not None:
            text, matched = answer.stream.push(token, may_stop=length >= seq.params.min_tokens)
            texts.append(text)
            if matched is not None:
                reason, stop = "stop", matched
        if reason is None and (length >= seq.max_tokens or seq.num_prompt + length >= max_model_len):
            reason = "length"
        if reason is not None:
            break
    if reason is not None and answer.stream is not None and not isinstance(stop, str):
        texts.append(answer.stream.end())
    return Cut(tokens[:taken], "".join(texts), reason, stop)


class Committer:
    """Makes steps stand. Owns the answers and the list of live requests; moves sequences through the scheduler."""

    def __init__(
        self,
        scheduler: ContinuousScheduler,
        recorder: Recorder,
        zero_blocks: Callable[[Seq[int]], None],
        new_answer: Callable[[Sequence], Answer],
        max_model_len: int,
    ) -> None:
        self.scheduler = scheduler
        self.recorder = recorder
        self.answers: dict[str, Answer] = {}
        self.requests: dict[str, tuple[str, ...]] = {}  # live requests -> their live sequences
        self._zero_blocks = zero_blocks
        self._new_answer = new_answer
        self._max_model_len = max_model_len

    def add(self, seq: Sequence) -> None:
        self.answers[seq.seq_id] = self._new_answer(seq)
        self.requests[seq.request_id] = (seq.seq_id,)
        self.scheduler.add(seq)
        self.recorder.arrived(seq)

    def commit(
        self,
        plan: StepPlan,
        verdicts: Mapping[str, Verdict],
        scores: Mapping[str, Seq[TokenLogprob]],
        drafts: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Make the step stand: tokens, counters, keys, text, ends. `drafts` is None where the proposer did not run."""
        self.recorder.committed(plan, self.scheduler)
        self.scheduler.begin_commit(plan)
        for s in plan.slices:
            seq = self.scheduler.sequences.get(s.seq_id)
            if seq is not None:  # not ended by another choice of its request
                self._keep_scores(seq, s, scores.get(s.seq_id))
                self._commit_slice(seq, s, verdicts)
        if drafts is not None:
            commit_drafts(plan, drafts, self.scheduler.sequences, self.scheduler.pool)
        for seq_id in plan.exhausted:
            if seq_id in self.scheduler.sequences:
                self.end(self.scheduler.sequences[seq_id], "length")
        check_idle(self.scheduler)

    def _keep_scores(self, seq: Sequence, s: Slice, scores: Seq[TokenLogprob] | None) -> None:
        """Row p scored prompt token p + 1; after a preemption some are scored again, and known already."""
        if scores is not None:
            known = self.answers[seq.seq_id].prompt_scores
            known += scores[len(known) - s.start - 1 :]
            seq.num_scored = len(known) - 1

    def _commit_slice(self, seq: Sequence, s: Slice, verdicts: Mapping[str, Verdict]) -> None:
        drawn = [v for c in range(seq.choice, seq.choice + seq.n) if (v := verdicts.get(seq.choice_id(c))) is not None]
        failed = next((v for v in drawn if v.error is not None), None)
        if failed is not None:
            self.fail(seq, failed.error or "", poisoned=failed.non_finite)
        elif s.start + s.n_new < seq.num_tokens:  # an unfinished chunk
            self.scheduler.commit_slice(s)
        elif seq.max_tokens == 0:  # only the prompt's log-probabilities were wanted
            self.scheduler.commit_slice(s)
            self.end(seq, "length")
        elif seq.n > 1:
            self.scheduler.commit_slice(s)
            for choice, verdict in zip([seq, *self._fork(seq)], drawn, strict=True):
                if choice.seq_id in self.scheduler.sequences:
                    self._give(choice, verdict, None)
        else:
            self._give(seq, drawn[0], s)

    def _fork(self, seq: Sequence) -> list[Sequence]:
        """Make the other choices of a request whose prompt is computed."""
        children = []
        for choice in range(1, seq.n):
            seq_id = seq.choice_id(choice)
            table = BlockTable(self.scheduler.pool, seq_id)
            child = replace(
                seq, seq_id=seq_id, choice=choice, n=1, tokens=list(seq.tokens), keys=list(seq.keys), table=table,
                undrafted=Counter(), judged_by_position=[], accepted_by_position=[],
            )  # fmt: skip
            self.answers[seq_id] = self._new_answer(child)
            children.append(child)
        self.requests[seq.request_id] = (seq.seq_id, *(c.seq_id for c in children))
        self.scheduler.fork(seq, children)
        self.recorder.forked(seq.seq_id, children)
        return children

    def _give(self, seq: Sequence, verdict: Verdict, s: Slice | None) -> None:
        """Hand a sequence what it drew, and end it where its answer ends. `s` is None where its rows are committed."""
        answer = self.answers[seq.seq_id]
        try:
            kept = cut(seq, answer, verdict.tokens, self._max_model_len)
        except Exception as error:  # the detokeniser
            self.fail(seq, f"{type(error).__name__}: {error}")
            return
        scores = None
        if seq.score_prompt and seq.choice == 0 and seq.num_tokens == seq.num_prompt:
            scores = tuple(answer.prompt_scores)
        seq.tokens.extend(kept.tokens)
        seq.steps += 1
        answer.text += kept.text
        # Told at once: a fault further on must not leave tokens counted that nobody got.
        self.recorder.output(
            Output(seq.seq_id, kept.tokens, kept.text, None, verdict.logprobs[: len(kept.tokens)], scores)
        )
        if s is not None:
            self.scheduler.commit_slice(s, accepted=len(kept.tokens) - 1)
            if s.n_draft:
                self._count_round(seq, s, verdict, kept)
            elif seq.k_why is not None:
                seq.undrafted[seq.k_why] += 1
        if kept.reason is not None:
            self._finish(seq, Finished(seq.seq_id, kept.reason, usage(seq), stop=kept.stop))

    def _count_round(self, seq: Sequence, s: Slice, verdict: Verdict, kept: Cut) -> None:
        """What a round of speculation gave. Drafts after the end of the answer were never drafted, judged or kept."""
        judged = verdict.judged
        accepted = sum(j.accepted for j in judged)
        if len(kept.tokens) <= accepted:
            accepted = len(kept.tokens)
            judged = judged[:accepted]
            seq.count_round(accepted, accepted, accepted)
        else:
            seq.count_round(s.n_draft, len(judged), accepted)
        self.recorder.round(seq.seq_id, judged, accepted, kept.tokens[accepted:], s.n_draft)

    def fail(self, seq: Sequence, error: str, *, poisoned: bool = False) -> None:
        """End the request this sequence belongs to: all its choices."""
        log.warning("request %s ended with an error: %s", seq.request_id, error)
        for seq_id in self.requests[seq.request_id]:
            self.end(self.scheduler.sequences[seq_id], "error", error, poisoned)

    def end(self, seq: Sequence, reason: FinishReason, error: str | None = None, poisoned: bool = False) -> None:
        """End a sequence outside of a verdict; text that was held back comes out now."""
        answer = self.answers[seq.seq_id]
        try:
            text = answer.stream.end() if answer.stream is not None else ""
        except Exception as failure:  # the detokeniser, which may be what ends this answer
            log.warning("the last text of %s is lost: %s: %s", seq.seq_id, type(failure).__name__, failure)
            text = ""
        scores = tuple(answer.prompt_scores) if seq.max_tokens == 0 and reason == "length" else None
        self.recorder.output(Output(seq.seq_id, (), text, None, (), scores))
        self._finish(seq, Finished(seq.seq_id, reason, usage(seq), error), poisoned)

    def _finish(self, seq: Sequence, finished: Finished, poisoned: bool = False) -> None:
        """Say how a sequence ended, then free everything it has: a fault in that must not leave it unanswered."""
        self.recorder.output(Output(seq.seq_id, finished=finished))
        to_zero = self.scheduler.remove(seq, poisoned=poisoned)
        if to_zero:
            self._zero_blocks(to_zero)
        del self.answers[seq.seq_id]
        live = tuple(s for s in self.requests[seq.request_id] if s != seq.seq_id)
        if live:
            self.requests[seq.request_id] = live
        else:
            del self.requests[seq.request_id]

    def rebuild(self, message: str) -> None:
        """The bookkeeping cannot be trusted: end everything in flight, and begin with an empty pool and index."""
        ended = list(self.scheduler.sequences.values())
        self.scheduler.reset()
        self.recorder.fault(self.scheduler, message)
        for seq in ended:
            self.recorder.output(Output(seq.seq_id, finished=Finished(seq.seq_id, "error", usage(seq), message)))
        self.answers.clear()
        self.requests.clear()
        self._zero_blocks(range(self.scheduler.pool.num_blocks))


def usage(seq: Sequence) -> Usage:
    """Counts of a sequence as they stand; recomputed tokens are neither prompt nor output."""
    return Usage(
        prompt_tokens=seq.num_prompt,
        completion_tokens=seq.num_tokens - seq.num_prompt,
        cached_tokens=seq.num_cached or 0,
        preemptions=seq.preemptions,
        recomputed_tokens=seq.recomputed,
        steps=seq.steps,
        rounds=seq.rounds,
        drafted=seq.drafted,
        accepted=seq.accepted,
        accepted_by_position=tuple(seq.accepted_by_position),
        judged_by_position=tuple(seq.judged_by_position),
        off_reason=off_reason(seq),
    )


def off_reason(seq: Sequence) -> KReason | None:
    """Why most of its decode steps had no drafts: the commonest reason; None where most had some."""
    if seq.undrafted.total() <= seq.rounds:
        return None
    return seq.undrafted.most_common(1)[0][0]
