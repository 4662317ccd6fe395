"""The playground: what is on the screen, which keys there are, and the loop that pulls news from the engine."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual import events
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Static, TextArea

from tui.chatting import Chatting
from tui.client.protocol import EngineClient, Update
from tui.commands import commands
from tui.glyphs import ASCII, UNICODE
from tui.messages import BlockPinned, CursorMoved, Notice, RequestSelected, RoundOpened, ViewOpened
from tui.model.breaks import KINDS
from tui.model.explain import explain
from tui.model.observer import Observer
from tui.model.view_state import ViewState
from tui.screens.help import HelpScreen
from tui.themes import THEMES, defaults
from tui.views import VIEWS
from tui.views.base import View
from tui.views.chat import ChatView
from tui.widgets.composer import Composer
from tui.widgets.engine_strip import TABS, EngineStrip
from tui.widgets.loading import LoadingBar

FRAMES_PER_S = 15
NARROW, WIDE = 100, 140
"""Columns: below the first one view at a time, from the second on the cockpit."""


def _keys(*rows: tuple[str, str, str, bool]) -> list[BindingType]:
    """Bindings from (keys, action, description, in the footer), each with its action as id, for remapping."""
    return [Binding(keys, action, text, show=show, id=f"{action}:{keys}") for keys, action, text, show in rows]


class Playground(Chatting):
    """Shows `client`'s engine. The exit code is 1 where it never came to work."""

    TITLE = "mini-infer"
    CSS_PATH: ClassVar = ["css/app.tcss"]
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW, "-medium"), (WIDE, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *_keys(
            ("ctrl+n", "new_chat", "New", True),
            ("escape", "stop", "Stop", True),
            ("ctrl+l", "load", "Load", True),
            ("f2", "pause", "Pause/Run", True),
            ("f3", "step", "Step", True),
            ("f4", "speed(1,True)", "Speed", True),
            ("f8", "break_on", "Break on…", True),
            ("n", "request(1)", "Request", True),
            ("comma", "rewind(-1)", "Back", True),
            ("full_stop", "step", "Forward", True),
            ("end", "live", "Live", True),
            ("ctrl+t", "lens", "Lens", True),
            ("ctrl+s", "save", "Save trace", True),
            ("f1", "help", "Help", True),
            ("N", "request(-1)", "Previous request", False),
            ("left_square_bracket", "rewind(-10)", "Ten back", False),
            ("right_square_bracket", "rewind(10)", "Ten forward", False),
            ("home", "oldest", "Oldest step", False),
            ("question_mark", "help", "Help", False),
            ("space", "pause", "Pause/Run", False),
            ("plus,equals_sign", "speed(1)", "Faster", False),
            ("minus", "speed(-1)", "Slower", False),
            ("b", "break_on", "Break on…", False),
            ("w", "why", "Why", False),
            ("f5", "sampling", "Sampling", False),
            ("k", "draft_tokens", "Drafts per round", False),
            ("d", "drafting", "Drafting on/off", False),
            ("x", "abort", "Abort request", False),
            ("c", "clear_cache", "Clear cache", False),
            ("ctrl+o", "open", "Open trace", False),
            ("y", "copy", "Copy view", False),
            ("i,enter", "write", "Write", False),
        ),
        *(Binding(str(i), f"view('{name.lower()}')", name, show=False, id=f"view-{i}") for i, name in enumerate(TABS)),
        Binding("ctrl+c", "interrupt", "Stop", show=False, priority=True, id="interrupt"),
    ]  # fmt: skip

    def __init__(
        self, client: EngineClient, *, ascii: bool = False, theme: str = "mini-dark", view: str = "cockpit"
    ) -> None:
        super().__init__()
        self.client = client
        self.glyphs = ASCII if ascii else UNICODE
        self.observer: Observer | None = None
        self.tab = view
        self._dirty = True
        self._failed: str | None = None
        for each in THEMES:
            self.register_theme(each)
        self.theme = theme
        self.set_class(ascii, "-ascii")

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return defaults(dark=True)

    def compose(self) -> ComposeResult:
        yield EngineStrip()
        yield LoadingBar(self.glyphs)
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield ChatView(id="chat")
                yield Composer(id="composer")
            with Vertical(id="right"):
                for view in VIEWS:
                    yield view(id=view.NAME)
        yield Footer(show_command_palette=True)
        yield Static("needs 80x24", id="too-small")

    async def on_mount(self) -> None:
        self.query_one(Composer).focus()
        self.set_lens("source" if self.client.meta.draft not in ("", "none") else "off")
        self.arrange()
        await self.client.start()
        self.set_interval(1 / FRAMES_PER_S, self.pull)
        if not self.is_headless:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, partial(self.exit, 128 + number))

    async def on_unmount(self) -> None:
        await self.client.close()
        if self._live is not None:
            await self._live.close()

    # --- news -------------------------------------------------------------------------------------------------------

    def pull(self) -> None:
        """Take what happened since the last frame, and draw it once."""
        update = self.client.poll()
        self._tell(update)
        if update.snapshot is not None:
            if self.observer is None:
                self.observer = Observer(update.snapshot, self.glyphs)
            else:
                self.observer.restart(update.snapshot)
        if self.observer is not None and not self.observer.take(update.reports):
            self.client.resync()
        if update.reports or update.snapshot is not None:
            self.follow_chat()
            self._dirty = True
        if self._dirty:
            self._draw()

    def _tell(self, update: Update) -> None:
        self.query_one(LoadingBar).show(update.loading, update.failed)
        if update.failed is not None and update.failed != self._failed:
            self.say(update.failed, "error")
            self.chat_failed(update.failed)
            self._failed = update.failed
        for note in update.notes:
            self.say(note, "warning")
        if update.stopped_for is not None:
            self.say(f"paused: {KINDS[update.stopped_for]}", "warning")
            self._dirty = True

    def redraw(self) -> None:
        """Draw with the next frame."""
        self._dirty = True

    @property
    def view(self) -> ViewState | None:
        """What is shown now; None before the engine told anything."""
        if self.observer is None:
            return None
        if self.observer.cursor.selected is None and (live := self.observer.history.live.state.sequences):
            self.observer.select(next(iter(live)))
        return self.observer.view(self.client.meta, self.client.is_paused)

    def _draw(self) -> None:
        self._dirty = False
        view = self.view
        if view is not None:
            self.query_one(EngineStrip).show(view)
            for shown in self.query(View):
                if all(part.display for part in shown.ancestors_with_self if isinstance(part, Widget)):
                    shown.show(view)

    # --- layout -----------------------------------------------------------------------------------------------------

    def arrange(self) -> None:
        """Which of chat and view are on the screen, for this width."""
        columns, rows = self.size
        tab = "chat" if self.tab == "cockpit" and columns < NARROW else self.tab
        both = tab != "chat" and (NARROW <= columns < WIDE or tab == "cockpit")
        left, right = self.query_one("#left"), self.query_one("#right")
        left.display = both or tab == "chat"
        right.display = tab != "chat"
        left.styles.width = "1fr" if not both else 63 if columns >= WIDE else 42
        for view in right.query(View):
            view.display = view.id == tab
        self.query_one(EngineStrip).tab = tab
        self.query_one("#too-small").display = columns < 80 or rows < 24
        self.redraw()

    def on_resize(self, event: events.Resize) -> None:
        self.arrange()

    def action_view(self, name: str) -> None:
        self.tab = name
        self.arrange()
        composer, front = self.query_one(Composer), self.front
        if name != "chat" and (not composer.has_focus or not self.query_one("#left").display):
            panel = next((p for p in front.panels if p.can_focus), None)
            self.screen.set_focus(panel)

    @property
    def front(self) -> View:
        """The view that the keys are about."""
        name = self.query_one(EngineStrip).tab
        return next((v for v in self.query(View) if v.id == name), self.query_one(ChatView))

    # --- where one looks --------------------------------------------------------------------------------------------

    def action_rewind(self, by: int) -> None:
        if self.observer is not None:
            self.observer.move(by)
            self.redraw()

    def action_oldest(self) -> None:
        self._go(0)

    def action_live(self) -> None:
        self._go(None)

    def _go(self, step: int | None) -> None:
        if self.observer is not None:
            self.observer.go(step)
            self.redraw()

    def action_request(self, by: int) -> None:
        if self.observer is not None:
            self.observer.select_next(by)
            self.redraw()

    def on_request_selected(self, message: RequestSelected) -> None:
        if self.observer is not None:
            self.observer.select(message.seq_id)
            self.redraw()

    def on_block_pinned(self, message: BlockPinned) -> None:
        if self.observer is not None:
            self.observer.pin(message.block)
            self.redraw()

    def on_cursor_moved(self, message: CursorMoved) -> None:
        self._go(message.step)

    def on_round_opened(self, message: RoundOpened) -> None:
        self.on_request_selected(RequestSelected(message.seq_id))
        self._go(message.step)
        self.action_view("spec")

    def on_view_opened(self, message: ViewOpened) -> None:
        self.action_view(message.name)

    def on_notice(self, message: Notice) -> None:
        self.say(message.text, message.severity)

    # --- keys -------------------------------------------------------------------------------------------------------

    def action_why(self) -> None:
        view = self.view
        self.say("nothing has happened yet" if view is None else explain(view, view.selected or ""))

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self.front.TITLE, self.front.HELP))

    def action_copy(self) -> None:
        self.copy_to_clipboard(self.front.as_text())
        self.say("the view is copied")

    def action_write(self) -> None:
        if not self.query_one("#left").display:
            self.action_view("chat")
        self.query_one(Composer).focus()

    def action_interrupt(self) -> None:
        """ctrl+c: copies a selection, else stops the answer, else says how to quit."""
        focused = self.focused
        if isinstance(focused, TextArea) and focused.selected_text:
            focused.action_copy()
        elif self.screen.get_selected_text():
            self.screen.action_copy_text()
        elif not self.stop_answer():
            self.say("ctrl+q quits")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield from commands(self, self.action_view)
        yield from super().get_system_commands(screen)
