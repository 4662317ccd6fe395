"""What keys and the palette make the engine do. A part of the app: it asks the client, and says what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.app import App

from mini_infer.errors import UserError
from mini_infer.observe.trace_file import FileSink
from mini_infer.sampling.params import SamplingParams
from tui.client.protocol import EngineClient
from tui.client.replay import ReplayClient
from tui.messages import EngineCommand
from tui.model.breaks import BreakOn
from tui.model.conversation import Sampling
from tui.model.observer import Observer
from tui.scenarios import background
from tui.screens.choose import BreakScreen, SamplingScreen, TextScreen
from tui.text import safe

SPEEDS: tuple[float | None, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, None)
DRAFT_TOKENS: tuple[int | None, ...] = (None, 0, 1, 2, 3, 4, 6, 8)


class Controls(App[int]):
    """The app as far as it controls an engine."""

    client: EngineClient
    observer: Observer | None
    breaks = BreakOn()
    sampling = Sampling()
    _load = 0  # requests of background loads so far
    _k_before: int | None = None
    _live: EngineClient | None = None  # while a trace is open

    def say(self, text: str, severity: Any = "information") -> None:
        self.notify(safe(text), severity=severity, markup=False)

    def redraw(self) -> None:
        """Draw with the next frame."""

    def action_pause(self) -> None:
        (self.client.run if self.client.is_paused else self.client.pause)()
        self.redraw()

    def action_step(self) -> None:
        if self.observer is not None and self.observer.cursor.step is not None:
            self.observer.move(1)
        elif self.client.is_paused:
            self.client.step()
        else:
            self.client.pause()
        self.redraw()

    def action_speed(self, by: int = 1, round_and_round: bool = False) -> None:
        now = self.client.meta.speed
        index = SPEEDS.index(now) if now in SPEEDS else len(SPEEDS) - 1
        index = (index + by) % len(SPEEDS) if round_and_round else max(0, min(len(SPEEDS) - 1, index + by))
        self.set_speed(SPEEDS[index])

    def set_speed(self, speed: float | None) -> None:
        self.client.set_speed(speed)
        self.say("full speed" if speed is None else f"{speed:g} steps a second")
        self.redraw()

    def action_break_on(self) -> None:
        def done(breaks: BreakOn | None) -> None:
            if breaks is not None:
                self.breaks = breaks
                self.client.set_breaks(breaks)

        self.push_screen(BreakScreen(self.breaks), done)

    def action_sampling(self) -> None:
        def done(sampling: Sampling | None) -> None:
            if sampling is not None:
                self.sampling = sampling
                words = ", ".join(f"{name} {value:g}" for name, value in sampling.given.items())
                self.say(f"sampling: {words or 'the model itself decides'}")

        self.push_screen(SamplingScreen(self.sampling), done)

    # --- speculation, requests, cache -------------------------------------------------------------------------------

    def set_draft_tokens(self, k: int | None) -> None:
        if self.client.meta.draft in ("", "none"):
            self.say("this engine has no drafter: start it with --draft", "warning")
            return
        self.client.set_draft_tokens(k)
        words = {None: "drafts per round: as many as pay", 0: "drafting is off"}
        self.say(words.get(k, f"drafts per round: {k}"))
        self.redraw()

    def action_draft_tokens(self) -> None:
        now = self.client.meta.k
        index = DRAFT_TOKENS.index(now) if now in DRAFT_TOKENS else 0
        self.set_draft_tokens(DRAFT_TOKENS[(index + 1) % len(DRAFT_TOKENS)])

    def action_drafting(self) -> None:
        if self.client.meta.k == 0:
            self.set_draft_tokens(self._k_before)
        else:
            self._k_before = self.client.meta.k
            self.set_draft_tokens(0)

    def action_abort(self) -> None:
        if self.observer is None or self.observer.cursor.selected is None:
            self.say("no request is selected")
            return
        record = self.observer.ledger.requests.get(self.observer.cursor.selected)
        if record is not None and record.ended_seq is None:
            self.client.abort(record.request_id)
            self.say(f"{record.letter} is aborted")

    def action_clear_cache(self) -> None:
        self.client.clear_cache()
        self.say("the prefix cache is cleared")

    def action_load(self, count: int = 6) -> None:
        self.run_worker(self._start_load(count), exit_on_error=False)

    async def _start_load(self, count: int) -> None:
        asks = list(background(count, self._load))
        self._load += count
        try:
            for ask in asks:
                params = SamplingParams(max_tokens=ask.max_tokens)
                await self.client.chat(list(ask.messages), params, ask.priority)
        except UserError as error:
            self.say(str(error), "error")

    # --- traces -----------------------------------------------------------------------------------------------------

    def action_save(self) -> None:
        if self.observer is None:
            self.say("nothing has happened yet", "warning")
            return
        name = f"mini-infer-step-{self.observer.history.newest}.jsonl"

        def done(path: str | None) -> None:
            if path:
                self.save(Path(path))

        self.push_screen(TextScreen("Save the last steps as a trace", name), done)

    def save(self, path: Path) -> None:
        assert self.observer is not None
        snapshot, reports = self.observer.history.recording()
        try:
            sink = FileSink(path, self.client.meta.config)  # type: ignore[arg-type]
            sink.start(snapshot)
            for report in reports:
                sink.emit(report)
            sink.close()
        except (UserError, OSError) as error:
            self.say(str(error), "error")
        else:
            self.say(f"{len(reports)} reports saved to {path}")

    def action_open(self) -> None:
        question = "Open a trace" + (" (an empty line goes back to the engine)" if self._live is not None else "")
        self.push_screen(TextScreen(question), self.open)

    def open(self, path: str | None) -> None:
        """Show a trace in place of the engine, which goes on; with an empty path, the engine again."""
        if path is None:
            return
        if not path and self._live is not None:
            self.client, self._live = self._live, None
            self.client.resync()
            self.observer = None
        elif path:
            try:
                replay = ReplayClient(Path(path).expanduser())
            except UserError as error:
                self.say(str(error), "error")
                return
            self._live = self._live or self.client
            self.client, self.observer = replay, None
            self.run_worker(replay.start())

    # --- from views -------------------------------------------------------------------------------------------------

    def on_engine_command(self, message: EngineCommand) -> None:
        value: Any = message.value
        match message.action:
            case "pause":
                self.client.pause()
            case "run":
                self.client.run()
            case "step":
                self.client.step(value or 1)
            case "speed":
                self.set_speed(value)
            case "abort":
                self.client.abort(value)
            case "clear_cache":
                self.action_clear_cache()
            case "draft_tokens":
                self.set_draft_tokens(value)
            case "drafting":
                self.action_drafting()
            case "break_on":
                self.action_break_on()
            case "load":
                self.action_load(value or 6)
        self.redraw()
