"""What the engine asks of a proposer of drafts. Without one K is 0 everywhere, and nothing here is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mini_infer.observe.events import KReason
from mini_infer.sampling.rows import SampleRow
from mini_infer.scheduler.plan import StepPlan
from mini_infer.scheduler.sequence import Sequence as Seq
from mini_infer.speculative.adaptive import Policy

if TYPE_CHECKING:
    from mini_infer.sampling.distribution import Categorical


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafted tokens by sequence, and for each of them the distribution it was drawn from.

    `q` is None where the proposer names tokens outright: then each has all the probability.
    """

    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    q: Mapping[str, Sequence[Categorical]] | None = None


class Proposer(Protocol):
    """Drafts tokens for the sequences of a plan."""

    name: str
    policy: Policy
    has_kv: bool  # keeps KV rows in the same blocks as the target

    def wants(self, seq: Seq) -> tuple[int, KReason | None]:
        """How many drafts a decoding sequence should have now, and why none where that is 0. Moves nothing."""
        ...

    def propose(self, plan: StepPlan, sequences: Mapping[str, Seq], rows: Mapping[str, SampleRow]) -> Drafts:
        """At most `n_draft` tokens for each slice of the plan that has drafts. `rows` shape the draws.

        A proposer with KV first makes the plan's copies in its own rows. May raise: the step is then taken without
        drafts.
        """
        ...

    def observe(self, plan: StepPlan, *, draft_s: float, verify_s: float) -> None:
        """What a step cost, in seconds: drafting, and the target's forward with the sampler."""
        ...

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Clear rows that may hold NaN or Inf before their blocks return to the pool."""
        ...
