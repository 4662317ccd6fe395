"""One sequence: its tokens, how many of them have KV, and the blocks that hold it.

Who moves what: the scheduler moves `status`, `table` and `wait` while planning; `tokens`, `num_computed` and published
keys move only at a commit (and `num_computed` back to 0 at a preemption). There is no phase: a sequence whose
`num_computed` is one short of its tokens decodes, one that is further behind reads a chunk.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from mini_infer.cache.block_table import BlockTable
from mini_infer.cache.prefix_cache import block_key
from mini_infer.observe.events import KReason, Miss, Wait
from mini_infer.sampling.params import SamplingParams


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """`tokens` is prompt and output; the first `num_computed` of them have KV rows in `table`."""

    seq_id: str
    request_id: str
    choice: int
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    seed: int
    arrival: int
    table: BlockTable
    root: bytes  # prefix key before the first block (model identity and salt)
    max_tokens: int  # resolved: the request's own, or what the context leaves
    priority: int = 0  # lower goes first
    n: int = 1  # choices to fork from it, itself included; 1 once forked
    score_prompt: bool = False  # prompt logprobs: every prompt row needs logits once
    status: Status = Status.WAITING
    num_computed: int = 0
    num_computed_draft: int = 0
    num_scored: int = 0  # prompt tokens whose log-probability is known (the first needs none)
    num_cached: int | None = None  # tokens hit at the first admission, None before it
    miss: Miss | None = None
    wait: Wait | None = None
    bypassed: int = 0  # times a later sequence was admitted while this one led the queue
    preemptions: int = 0
    lost: int = 0  # rows lost at the last preemption, until it resumes
    recomputed: int = 0
    k: int = 0  # drafts planned in the last step that planned it
    k_why: KReason | None = None  # why none; a sequence that reads its prompt has no reason
    may_draft: bool = True  # False once drafting it gave no distribution (NaN)
    last_drafted: int = 0  # its number of tokens when it last had drafts (at first: its prompt)
    steps: int = 0  # that gave it tokens
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    undrafted: Counter[KReason] = field(default_factory=Counter)  # decode steps without drafts, by reason
    judged_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def remaining(self) -> int:
        """Known tokens without KV: 1 when it decodes."""
        return len(self.tokens) - self.num_computed

    @property
    def order(self) -> tuple[int, int, int]:
        """Place in the order of service."""
        return self.priority, self.arrival, self.choice

    def choice_id(self, choice: int) -> str:
        """The id of one choice of its request, before or after the fork."""
        return self.seq_id if choice == self.choice else f"{self.request_id}/{choice}"

    @property
    def is_running(self) -> bool:
        return self.status is Status.RUNNING

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    def count_round(self, drafted: int, judged: int, accepted: int) -> None:
        """One round of speculation: of `drafted` tokens `judged` were looked at and the first `accepted` kept."""
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        for counts, reached in ((self.judged_by_position, judged), (self.accepted_by_position, accepted)):
            counts += [0] * (reached - len(counts))
            for i in range(reached):
                counts[i] += 1

    def block_keys(self, count: int, size: int) -> list[bytes]:
        """Keys of the first `count` full blocks; each is computed once and kept."""
        for i in range(len(self.keys), count):
            parent = self.keys[i - 1] if i else self.root
            self.keys.append(block_key(parent, self.tokens[i * size : (i + 1) * size]))
        return self.keys[:count]

    def hit_cap(self, size: int) -> int:
        """Blocks a prefix hit may serve: one token is always computed, since its logits are wanted.

        Prompt rows that still have to be scored must be computed too.
        """
        rows = self.num_tokens - 1
        if self.score_prompt:
            rows = min(rows, self.num_scored)
        return rows // size
