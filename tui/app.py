"""The playground: what is on the screen, which keys there are, and the loop that pulls news from the engine."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual import events
from textual.app import ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import Footer, Static, TextArea

from tui.chatting import Chatting
from tui.client.protocol import EngineClient, Update
from tui.commands import commands
from tui.glyphs import ASCII, UNICODE
from tui.keys import BINDINGS
from tui.messages import BlockPinned, CursorMoved, Notice, RequestSelected, RoundOpened, ViewOpened
from tui.model.breaks import KINDS
from tui.model.explain import explain
from tui.model.observer import Observer
from tui.model.view_state import ViewState
from tui.screens.help import HelpScreen
from tui.themes import THEMES, defaults
from tui.views.all import VIEWS
from tui.views.base import View
from tui.views.chat import ChatView
from tui.widgets.composer import Composer
from tui.widgets.engine_strip import EngineStrip
from tui.widgets.loading import LoadingBar

FRAMES_PER_S = 15
NARROW, WIDE = 100, 140
"""Columns: below the first one view at a time, from the second on the cockpit."""


class Playground(Chatting):
    """Shows `client`'s engine. The exit code is 1 where it never came to work."""

    TITLE = "mini-infer"
    CSS_PATH: ClassVar = ["css/app.tcss"]
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW, "-medium"), (WIDE, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = BINDINGS

    def __init__(
        self, client: EngineClient, *, ascii: bool = False, theme: str = "mini-dark", view: str = "cockpit"
    ) -> None:
        super().__init__()
        self.client = client
        self.glyphs = ASCII if ascii else UNICODE
        self.observer: Observer | None = None
        self.tab = view
        self.strip = EngineStrip()
        self.loading_bar = LoadingBar(self.glyphs)
        self.chat, self.composer = ChatView(id="chat"), Composer(id="composer")
        self.views = [each(id=each.NAME) for each in VIEWS]
        self.left, self.right = Vertical(id="left"), Vertical(id="right")
        self.too_small = Static("needs 80x24", id="too-small")
        self._dirty = True
        self._chosen = False
        self.failed: str | None = None
        for each in THEMES:
            self.register_theme(each)
        self.theme = theme
        self.set_class(ascii, "-ascii")

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return defaults(dark=True)

    def compose(self) -> ComposeResult:
        yield self.strip
        yield self.loading_bar
        with Horizontal(id="body"):
            with self.left:
                yield self.chat
                yield self.composer
            with self.right:
                yield from self.views
        yield Footer(show_command_palette=True)
        yield self.too_small

    async def on_mount(self) -> None:
        self.composer.focus()
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
            self._select_first()
            self._dirty = True
        if self._dirty:
            self._draw()

    def _select_first(self) -> None:
        """Whoever has chosen nothing yet looks at the first request there is."""
        if not self._chosen and self.observer is not None and self.observer.ledger.requests:
            self._chosen = True
            if self.observer.cursor.selected is None:
                live = self.observer.history.live.state.sequences
                self.observer.select(next(iter(live or self.observer.ledger.requests)))

    def _tell(self, update: Update) -> None:
        self.loading_bar.show(update.loading, update.failed)
        if update.failed is not None and update.failed != self.failed:
            self.say(update.failed, "error")
            self.chat_failed(update.failed)
            self.failed = update.failed
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
        return self.observer.view(self.client.meta, self.client.is_paused)

    def _draw(self) -> None:
        self._dirty = False
        view = self.view
        if view is not None:
            self.strip.show(view)
            for shown in self.on_screen:
                shown.show(view)

    # --- layout -----------------------------------------------------------------------------------------------------

    def arrange(self, size: Size | None = None) -> None:
        """Which of chat and view are on the screen, for this size."""
        columns, rows = size or self.size
        tab = "chat" if self.tab == "cockpit" and columns < NARROW else self.tab
        both = tab != "chat" and (NARROW <= columns < WIDE or tab == "cockpit")
        self.left.display = both or tab == "chat"
        self.right.display = tab != "chat"
        self.left.styles.width = "1fr" if not both else 63 if columns >= WIDE else 42
        for view in self.views:
            view.display = view.id == tab
        self.strip.tab = tab
        self.too_small.display = columns < 80 or rows < 24
        self.redraw()

    def on_resize(self, event: events.Resize) -> None:
        self.arrange(event.size)  # the app's own size changes only after this

    def action_view(self, name: str) -> None:
        self.tab = name
        self.arrange()
        if name != "chat" and (not self.composer.has_focus or not self.left.display):
            self.screen.set_focus(next((p for p in self.front.panels if p.can_focus), None))

    @property
    def front(self) -> View:
        """The view that the keys are about."""
        return next((view for view in self.views if view.id == self.strip.tab), self.chat)

    @property
    def on_screen(self) -> list[View]:
        """The views that can be seen."""
        chat: list[View] = [self.chat] if self.left.display else []
        return chat + [view for view in self.views if view.display]

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
        if not self.left.display:
            self.action_view("chat")
        self.composer.focus()

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
