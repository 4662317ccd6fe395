"""When to stop the engine: conditions on a step's report."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mini_infer.observe.events import StepReport

KINDS = {
    "preempt": "a request is preempted",
    "evict": "a cached block is evicted",
    "finish": "a request finishes",
    "reject": "a round keeps none of its drafts",
    "admit": "a request is admitted",
}
"""What can be waited for, and its words."""


@dataclass(frozen=True, slots=True)
class BreakOn:
    """The conditions that are set, by their names in `KINDS`."""

    kinds: frozenset[str] = frozenset()

    def toggled(self, kind: str) -> BreakOn:
        return replace(self, kinds=self.kinds ^ {kind})

    def met_by(self, report: StepReport) -> str | None:
        """The first condition that the report meets."""
        for kind in KINDS:
            if kind in self.kinds and _HAPPENED[kind](report):
                return kind
        return None


_HAPPENED = {
    "preempt": lambda r: bool(r.preempted),
    "evict": lambda r: any(m.op == "evict" for m in r.blocks),
    "finish": lambda r: bool(r.finished),
    "reject": lambda r: any(x.kept == 0 and x.drafted > 0 for x in r.spec),
    "admit": lambda r: bool(r.admitted),
}
