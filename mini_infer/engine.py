"""The engine: plan, run, resolve, commit, one step at a time.

`InferenceEngine` holds the parts and the order between them, and decides who is at fault when one of them raises. It
is single-threaded: `service.EngineService` gives it a thread. Nothing here imports torch until an engine is built.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence as Seq
from dataclasses import replace
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING

from mini_infer.audience import Audience
from mini_infer.cache.block_pool import BlockPool
from mini_infer.cache.block_table import BlockTable
from mini_infer.cache.prefix_cache import PrefixCache, root_key
from mini_infer.commit import Answer, Committer
from mini_infer.config import EngineConfig
from mini_infer.forward import Resolver, Result, Runner, execute, sample_rows
from mini_infer.intake import Limits, settle_params
from mini_infer.observe.events import Control, Durations, KReason, StepReport
from mini_infer.observe.sinks import Sink
from mini_infer.observe.state import EngineInfo, EngineState
from mini_infer.recorder import Recorder
from mini_infer.sampling.params import SamplingParams
from mini_infer.scheduler.continuous import ContinuousScheduler
from mini_infer.scheduler.plan import StepPlan
from mini_infer.scheduler.sequence import Sequence
from mini_infer.speculative.adaptive import policy_of
from mini_infer.speculative.drafting import settle
from mini_infer.speculative.proposer import Drafts, Proposer
from mini_infer.text.stream import TextStream

if TYPE_CHECKING:
    import torch

    from mini_infer.models.config import ModelConfig
    from mini_infer.models.transformer import Transformer
    from mini_infer.text.tokenizer import Tokenizer

log = logging.getLogger("mini_infer")

DEFAULT_BLOCKS = 256
MAX_DRAFT_FAILURES = 3
"""So many failures in a row end drafting for good: reason `FAILED`."""


class InferenceEngine:
    """Answers any number of requests at once from one model.

    Args:
        model: the weights, from `load_model_from_safetensors`.
        config: their `ModelConfig`.
        num_blocks, block_size, device: size of the KV pool (default 256 blocks of 16 tokens) and where it lives, with
            the model; each wins over the same knob of `options`. Raises UserError for what cannot work.
        options: all further knobs.
        tokenizer: gives outputs their text; without one they are ids only, and stop strings are refused.
        proposer: drafts tokens for the target to verify; None is what `options.draft` names, "none" or "ngram" (a
            draft model comes with `build_engine`).
        runner, sampler: stand-ins for tests; `model` may then be None.
    """

    def __init__(
        self,
        model: Transformer | None,
        config: ModelConfig,
        num_blocks: int | None = None,
        block_size: int | None = None,
        device: torch.device | str | None = None,
        options: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        runner: Runner | None = None,
        sampler: Resolver | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        options = options or EngineConfig()
        options = options if block_size is None else replace(options, block_size=block_size)
        options = options if num_blocks is None else replace(options, kv_blocks=num_blocks, kv_memory=None)
        num_blocks, block_size, device_type = options.kv_blocks or DEFAULT_BLOCKS, options.block_size, "cpu"
        if runner is None:
            if model is None:
                raise ValueError("an engine needs a model, or a runner in its place")
            from mini_infer.cache.kv_store import KVStore
            from mini_infer.memory import device_of, pool_blocks
            from mini_infer.models.runner import ModelRunner

            place = device_of(model.device, device)
            shape = (config.num_layers, block_size, config.num_kv_heads, config.head_dim)
            num_blocks = pool_blocks(options, KVStore.bytes_per_block(*shape, model.dtype), place.type, DEFAULT_BLOCKS)
            runner = ModelRunner(model, config, num_blocks, block_size, place)
            device_type = runner.device.type
        if sampler is None:
            from mini_infer.sampling.sampler import Sampler

            sampler = Sampler()
        if proposer is None and options.draft not in (None, "none"):
            from mini_infer.speculative.build import build_proposer

            proposer = build_proposer(options, config.vocab_size)
        self.options = options = replace(options, kv_blocks=num_blocks, kv_memory=None).resolve(device_type)
        assert options.max_running and options.max_batch_tokens and options.max_chunk  # filled by `resolve`
        self.config = config
        self.tokenizer = tokenizer
        self.runner = runner
        self.sampler = sampler
        self.proposer = proposer
        context = config.max_position_embeddings
        self.max_model_len = min(options.max_model_len or context, context)
        # All that the rows of a block depend on besides its tokens.
        self._identity = f"{config.identity}|{model.dtype if model is not None else ''}"
        pool = BlockPool(num_blocks, block_size)
        self.scheduler = ContinuousScheduler(
            pool,
            PrefixCache(pool, options.prefix_cache),
            max_running=options.max_running,
            max_batch_tokens=options.max_batch_tokens,
            max_chunk=options.max_chunk,
        )
        info = EngineInfo(
            model=config.identity,
            num_blocks=num_blocks,
            block_size=block_size,
            max_running=options.max_running,
            max_batch_tokens=options.max_batch_tokens,
            max_chunk=options.max_chunk,
            max_model_len=self.max_model_len,
            prefix_cache=options.prefix_cache,
            draft=proposer.name if proposer is not None else "none",
        )
        self.scheduler.draft_has_kv = proposer is not None and proposer.has_kv
        self.limits = Limits(
            config.vocab_size, self.max_model_len, options.max_running, num_blocks, block_size, tokenizer is not None
        )
        self.recorder = Recorder(info, self._text_of, tokenizer.piece if tokenizer is not None else None)
        self.audience = Audience(self.snapshot, lambda on: self.recorder.listen(self.scheduler, on))
        self.committer = Committer(
            self.scheduler, self.recorder, self._zero_blocks, self._new_answer, self.max_model_len
        )
        self._arrivals = 0
        self._entropy = Random(options.entropy_seed) if options.entropy_seed is not None else secrets.SystemRandom()
        self._last_error = ""
        self._draft_failures = 0  # in a row

    # --- requests ---------------------------------------------------------------------------------------------------

    def add_request(
        self,
        prompt_tokens: Seq[int],
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> str:
        """Queue a request and return its id. It takes part from the next step on.

        Without `params` it is greedy; what they leave unset, the checkpoint's `generation_config.json` fills.
        `priority`: lower goes first. Requests with different `cache_salt` never share KV blocks.

        Raises UserError (`intake.ContextLengthError` for a prompt that is too long); nothing is queued then.
        """
        params = settle_params(params, max_tokens, self.config.generation)
        prompt = self.limits.check(prompt_tokens, params, priority, cache_salt)
        self._arrivals += 1
        request_id = f"r{self._arrivals}"
        seq_id = request_id if params.n == 1 else f"{request_id}/0"
        left = self.max_model_len - len(prompt)
        seq = Sequence(
            seq_id=seq_id,
            request_id=request_id,
            choice=0,
            tokens=prompt,
            num_prompt=len(prompt),
            last_drafted=len(prompt),
            params=params,
            seed=params.seed if params.seed is not None else self._entropy.getrandbits(64),
            arrival=self._arrivals,
            table=BlockTable(self.scheduler.pool, seq_id),
            root=root_key(self._identity, cache_salt),
            max_tokens=left if params.max_tokens is None else min(params.max_tokens, left),
            priority=priority,
            n=params.n,
            score_prompt=params.prompt_logprobs is not None,
        )
        self.committer.add(seq)
        return request_id

    def abort(self, request_id: str) -> bool:
        """End a request now and free its blocks; False if it had ended already. Its output comes with the next report.

        Raises KeyError for an id this engine never gave.
        """
        if self.is_finished(request_id):
            return False
        for seq_id in self.committer.requests[request_id]:
            self.recorder.aborted(seq_id)
            self.committer.end(self.scheduler.sequences[seq_id], "abort")
        return True

    def is_finished(self, request_id: str) -> bool:
        """Whether all choices of the request have ended. Raises KeyError for an id this engine never gave."""
        if request_id in self.committer.requests:
            return False
        number = request_id.removeprefix("r")
        if not (number.isdecimal() and request_id == f"r{int(number)}" and 0 < int(number) <= self._arrivals):
            raise KeyError(f"no request was ever called {request_id!r}")
        return True

    @property
    def has_work(self) -> bool:
        """A step would do something."""
        return bool(self.scheduler.sequences)

    def _new_answer(self, seq: Sequence) -> Answer:
        own = () if seq.params.ignore_eos else self.config.eos_token_ids
        stream = None
        if self.tokenizer is not None:
            stream = TextStream(self.tokenizer, seq.tokens[: seq.num_prompt], tuple(seq.params.stop))
        return Answer(frozenset((*own, *seq.params.stop_token_ids)), stream)

    def _zero_blocks(self, blocks: Seq[int]) -> None:
        self.runner.zero_blocks(blocks)
        if self.proposer is not None:
            self.proposer.zero_blocks(blocks)

    # --- observers --------------------------------------------------------------------------------------------------

    def attach(self, sink: Sink) -> None:
        """Send this sink a snapshot (now, or after the next report where news are pending), then every report."""
        self.audience.join(sink, now=not self.recorder.pending)

    def detach(self, sink: Sink) -> None:
        """Send this sink nothing more; it is not closed."""
        self.audience.leave(sink)

    def snapshot(self) -> EngineState:
        """The whole observable state as of the last report; exact while no arrival, abort or control is pending."""
        return self.recorder.snapshot(self.scheduler, self.scheduler.paused)

    def flush(self) -> StepReport | None:
        """A report of news without a step (arrivals, aborts, controls while paused or idle); None without any."""
        return self._report(None) if self.recorder.pending else None

    def set_paused(self, paused: bool) -> None:
        """State that the engine is paused: waiting requests say so. Whoever calls `step` decides whether it steps."""
        if paused != self.scheduler.paused:
            self.scheduler.set_paused(paused)
            self.recorder.control(Control("pause" if paused else "resume"))

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Running requests keep their blocks."""
        self.scheduler.prefix.clear()
        self.recorder.control(Control("reset_cache"))

    def set_draft_tokens(self, k: int | None) -> None:
        """Draft K tokens per sequence from the next step on, 0 to 8; None: as many as pay. Raises ValueError."""
        if self.proposer is not None:
            self.proposer.policy = policy_of(k, self.proposer.policy.costs, drafts_free=not self.proposer.has_kv)

    def _text_of(self, seq_id: str) -> str:
        return self.committer.answers[seq_id].text

    # --- the step ---------------------------------------------------------------------------------------------------

    def step(self) -> StepReport:
        """Take one step, or none where nobody is there to serve, and report everything since the last report.

        A request at fault ends with an error in the report; only Ctrl+C and its kind are raised, with the step undone.
        """
        if not self.has_work:
            return self._report(None)
        began = perf_counter()
        try:
            plan = self.scheduler.plan(wants=self._wants if self.proposer is not None else None)
            planned = perf_counter()
            plan, drafts = self._draft(plan)
            drafted = perf_counter()
            result = self._run(plan, drafts)
            ran = perf_counter()
            if result is None:
                result = Result()
                self._one_by_one(plan)
            else:
                self.committer.commit(plan, result.verdicts, result.scores, drafts.tokens if drafts else None)
        except Undone as undone:
            raise undone.cause from None
        except BaseException as error:  # in plan or commit: the bookkeeping itself cannot be trusted any more
            message = f"the engine failed and was rebuilt: {type(error).__name__}: {error}"
            log.error(message, exc_info=error)
            self.committer.rebuild(message)
            if not isinstance(error, Exception):
                raise
            return self._report(Durations())
        if self.proposer is not None and result.verdicts:
            self._observe(plan, drafted - planned, sum(result.times))
        ms = [1000 * t for t in (planned - began, drafted - planned, *result.times, perf_counter() - ran)]
        return self._report(Durations(*ms))

    def _wants(self, seq: Sequence) -> tuple[int, KReason | None]:
        if self.proposer is None or self._draft_failures >= MAX_DRAFT_FAILURES:
            return 0, "FAILED"
        try:
            return self.proposer.wants(seq)
        except Exception as error:
            self._draft_failed(error)
            return 0, "FAILED"

    def _draft(self, plan: StepPlan) -> tuple[StepPlan, Drafts | None]:
        """The plan with what was drafted for it. Where drafting raises, the step is taken without."""
        proposer = self.proposer
        if proposer is None or not (plan.has_drafts or (plan.copies and proposer.has_kv)):
            return plan, None
        if self._draft_failures >= MAX_DRAFT_FAILURES:
            return plan.with_drafts({}), None
        sequences, answers = self.scheduler.sequences, self.committer.answers
        rows = {s.seq_id: sample_rows(sequences[s.seq_id], answers[s.seq_id].stop_ids, 0)[0]
                for s in plan.slices if s.n_draft}  # fmt: skip
        try:
            drafts = proposer.propose(plan, sequences, rows)
        except Exception as error:
            self._draft_failed(error)
            return settle(plan, None, sequences), None
        except BaseException as error:
            raise self._undo(plan, error) from error
        self._draft_failures = 0
        return settle(plan, drafts.tokens, sequences), drafts

    def _observe(self, plan: StepPlan, draft_s: float, verify_s: float) -> None:
        assert self.proposer is not None
        try:
            self.proposer.observe(plan, draft_s=draft_s, verify_s=verify_s)
        except Exception as error:  # the step stands
            self._draft_failed(error)

    def _draft_failed(self, error: Exception) -> None:
        self._draft_failures += 1
        end = "; no drafts from now on" if self._draft_failures == MAX_DRAFT_FAILURES else ""
        log.warning("drafting failed (%d in a row): %s: %s%s", self._draft_failures, type(error).__name__, error, end)

    def _run(self, plan: StepPlan, drafts: Drafts | None = None) -> Result | None:
        """Run a plan. Where that raises, return its reservations and answer None."""
        try:
            return execute(
                plan,
                self.scheduler.sequences,
                self.committer.answers,
                self.runner,
                self.sampler,
                self.scheduler.size,
                drafts=drafts,
                explain=self.recorder.listening,
            )
        except BaseException as error:
            undone = self._undo(plan, error)
            if not isinstance(error, Exception):
                raise undone from error
            self._last_error = f"{type(error).__name__}: {error}"
            return None

    def _undo(self, plan: StepPlan, error: BaseException) -> Undone:
        """Return what a plan reserved, and clear what the failed step may have written there; its preemptions stay."""
        self.recorder.preempted(plan.preempted)
        self._zero_blocks(self.scheduler.rollback(plan))
        return Undone(error)

    def _one_by_one(self, plan: StepPlan) -> None:
        """A step failed as a whole. Each of its sequences runs alone once: what fails again ends with `error`."""
        for s in plan.slices:
            seq = self.scheduler.sequences.get(s.seq_id)
            if seq is None:  # ended with another choice of its request
                continue
            single = self.scheduler.plan(only=s.seq_id, wants=_nothing if self.proposer is not None else None)
            result = self._run(single)
            if result is None:
                self.committer.fail(seq, self._last_error, poisoned=True)
            elif not single.is_empty:
                self.committer.commit(single, result.verdicts, result.scores)

    def _report(self, durations: Durations | None) -> StepReport:
        report = self.recorder.report(self.scheduler, perf_counter(), durations)
        self.audience.tell(report)
        return report


def _nothing(seq: Sequence) -> tuple[int, KReason | None]:
    """The policy of a step that is tried again: no drafts."""
    return 0, "FAILED"


class Undone(Exception):
    """Carries Ctrl+C and its kind out of a step that was undone; the engine is whole."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause
