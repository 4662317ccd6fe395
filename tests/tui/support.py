"""Runs of a real engine on a model without tensors, seen through the playground's model, with a clock of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace
from textual.app import App, ComposeResult
from textual.message import Message

from mini_infer.engine import InferenceEngine
from mini_infer.observe.events import Durations, StepReport
from mini_infer.observe.state import EngineState
from mini_infer.sampling.params import SamplingParams
from tests.support.fake import VOCAB, fake_engine
from tui.glyphs import UNICODE, Glyphs
from tui.model.cursor import Cursor
from tui.model.history import History
from tui.model.ledger import Ledger
from tui.model.view_state import Meta, ViewState, view_state
from tui.themes import THEMES, defaults
from tui.views.base import View
from tui.widgets.panel import Panel

WORDS = (
    " the", " of", " and", " block", " table", " cache", " token", " draft", " step", " queue", " a", " is", " to",
    " in", " prefix", " hit", " pool", " free", " request", " engine", ".", ",", "\n", " key", " value", " paged",
    " small", " large", " first", " last", " each", " every", " one", " two", " maps", " holds", " waits", " runs",
    " it", " its", " that", " then", " when", " why", " how", " 日本", " é", " [b]", "-size", "ing",
)  # fmt: skip
"""A text for each id of the fake model."""

STEP_S = 0.1
DURATIONS = Durations(schedule=0.3, draft=4.1, forward=11.8, sample=1.6, commit=0.2)


class Told:
    """A sink that keeps what it is told, on a clock of its own and with texts: the same at every run."""

    def __init__(self) -> None:
        self.snapshot: EngineState | None = None
        self.reports: list[StepReport] = []
        self._known: set[int] = set()

    def start(self, snapshot: EngineState) -> None:
        self.snapshot = snapshot

    def emit(self, report: StepReport) -> None:
        assert self.snapshot is not None
        t = round(STEP_S * report.seq, 6)
        ids = {i for a in report.arrived for i in a.prompt} | {i for o in report.outputs for i in o.token_ids}
        pieces = {i: WORDS[i] for i in sorted(ids - self._known)}
        self._known |= ids
        self.reports.append(
            replace(
                report,
                t=t,
                durations=None if report.durations is None else DURATIONS,
                arrived=tuple(replace(a, t=round(t - 0.05, 6)) for a in report.arrived),
                outputs=tuple(replace(o, text="".join(WORDS[i] for i in o.token_ids)) for o in report.outputs),
                pieces=pieces,
            )
        )

    def close(self) -> None:
        pass


class EngineRun:
    """An engine under way, and the playground's model of it."""

    def __init__(self, engine: InferenceEngine | None = None, **options: Any) -> None:
        self.engine = engine or fake_engine(**options)
        self.told = Told()
        self.engine.attach(self.told)
        assert self.told.snapshot is not None
        self.snapshot = self.told.snapshot
        self.history = History(self.snapshot)
        self.ledger = Ledger(self.snapshot)
        self._taken = 0

    @property
    def reports(self) -> list[StepReport]:
        return self.told.reports

    def ask(self, prompt: Sequence[int], max_tokens: int = 8, n: int = 1, **more: Any) -> str:
        """Queue a greedy request of token ids; its id."""
        params = SamplingParams(temperature=0, max_tokens=max_tokens, n=n)
        return self.engine.add_request(list(prompt), params, **more)

    def step(self, count: int = 1) -> EngineRun:
        for _ in range(count):
            self.engine.step()
        return self._take()

    def finish(self) -> EngineRun:
        """Step until nobody is served any more."""
        while self.engine.has_work:
            self.engine.step()
        return self._take()

    def do(self, action: Callable[[InferenceEngine], object]) -> EngineRun:
        """Something without a step: abort, pause, …"""
        action(self.engine)
        self.engine.flush()
        return self._take()

    def _take(self) -> EngineRun:
        for report in self.reports[self._taken :]:
            assert self.history.add(report)
            self.ledger.add(report)
        self._taken = len(self.reports)
        return self

    def view(
        self,
        step: int | None = None,
        selected: str | None = None,
        pinned: int | None = None,
        glyphs: Glyphs = UNICODE,
        meta: Meta | None = None,
    ) -> ViewState:
        """What the playground shows after that step (None: the newest)."""
        return view_state(self.history, self.ledger, Cursor(step, selected, pinned), glyphs, meta)


def words(text: str) -> list[int]:
    """The ids of words, which must be among `WORDS`."""
    return [WORDS.index(f" {w}") for w in text.split()]


def tiny_run(steps: int | None = None) -> EngineRun:
    """Eight requests in a pool of 24 blocks of 4: shared prefixes, chunks, drafts, waiting, preemption, an abort.

    `steps` stops it there, with the last requests still at work; None runs it to the end.
    """
    run = EngineRun(num_blocks=24, block_size=4, draft="model", k=3, max_running=4, max_batch_tokens=12, max_chunk=8)
    system = words("the engine holds every token in a small block and maps it")
    run.ask([*system, *words("why")], 70)
    run.step(3)
    run.ask([*system, *words("how then")], 12)
    run.ask([*words("a large prefix waits"), *system, *words("key value")], 60)
    run.step(4)
    run.ask([*system, *words("in to")], 20, priority=-1)
    run.ask(words("one two one two each"), 75)
    run.step(3)
    run.ask([*system, *words("that is one")], 10)
    gone = run.ask(words("paged cache"), 30)
    run.step(4)
    run.do(lambda engine: engine.abort(gone))
    run.ask(words("first last"), 80)
    if steps is not None:
        left = steps - run.history.newest
        assert left >= 0, f"the story itself takes {run.history.newest} steps"
        return run.step(left)
    return run.finish()


class ViewApp(App[None]):
    """A view or a panel alone, with the themes; `heard` are the messages that reached the top."""

    HORIZONTAL_BREAKPOINTS: ClassVar = [(0, "-narrow"), (100, "-medium"), (140, "-wide")]
    VERTICAL_BREAKPOINTS: ClassVar = [(0, "-short"), (30, "-tall")]

    def __init__(self, shown: View | Panel, theme: str = "mini-dark") -> None:
        super().__init__()
        self.shown = shown
        self.heard: list[Message] = []
        for each in THEMES:
            self.register_theme(each)
        self.theme = theme

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return defaults(dark=True)

    def compose(self) -> ComposeResult:
        yield self.shown

    def on_mount(self) -> None:
        self.animation_level = "none"

    def show(self, view: ViewState) -> None:
        self.shown.show(view)

    def _hear(self, message: Message) -> None:
        self.heard.append(message)

    on_request_selected = on_block_pinned = on_block_hovered = on_cursor_moved = _hear
    on_round_opened = on_view_opened = on_engine_command = on_notice = _hear


assert len(WORDS) == VOCAB
