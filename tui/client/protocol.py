"""What the playground needs of an engine, wherever that is: in this process, in a trace file, in a test.

The app pulls: `poll` gives what happened since the last call. Nothing is pushed into the user interface, so an engine
that is faster than the screen costs one longer list, and no queue grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mini_infer.observe.events import StepReport
from mini_infer.observe.state import EngineState
from mini_infer.sampling.params import SamplingParams
from tui.model.breaks import BreakOn
from tui.model.view_state import Meta

ChatMessage = Mapping[str, str]
"""`role` and `content`."""


@dataclass(frozen=True, slots=True)
class Loading:
    """What is being waited for, and how far it is: (done, in all), (0, 0) where nobody knows."""

    what: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """News since the last poll. A snapshot comes first, and again after `resync`; `reports` go on from it.

    `loading`: not ready yet. `failed`: it never will be, or no longer is, and why, in one line. `stopped_for`: the
    condition for which the engine was paused (`tui.model.breaks`).
    """

    snapshot: EngineState | None = None
    reports: Sequence[StepReport] = ()
    loading: Loading | None = None
    failed: str | None = None
    stopped_for: str | None = None
    notes: Sequence[str] = field(default=())  # for the person: one line each


class EngineClient(Protocol):
    """An engine as the playground uses it. All methods belong to the app's event loop and return at once."""

    meta: Meta

    @property
    def is_paused(self) -> bool: ...

    async def start(self) -> None:
        """Begin; called once, when the screen stands."""

    async def close(self) -> None:
        """End everything. May be called again."""

    def poll(self) -> Update: ...

    def resync(self) -> None:
        """Reports were lost: the next updates begin with a snapshot again."""

    async def chat(self, messages: Sequence[ChatMessage], params: SamplingParams, priority: int = 0) -> str:
        """Ask for the next message; returns the request's id. Raises UserError."""

    def abort(self, request_id: str) -> None: ...

    def pause(self) -> None: ...

    def run(self) -> None: ...

    def step(self, count: int = 1) -> None:
        """Single steps while paused."""

    def set_speed(self, steps_per_s: float | None) -> None:
        """At most so many steps a second; None is full speed."""

    def set_breaks(self, breaks: BreakOn) -> None:
        """Pause right after a step in which one of these happens."""

    def set_draft_tokens(self, k: int | None) -> None: ...

    def clear_cache(self) -> None: ...
