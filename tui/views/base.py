"""The base of views, and how to write one.

**A view** is a container of panels (`tui.widgets.panel.Panel`): it composes them, lays them out with CSS, and has
`NAME`, `TITLE`, `HELP` and `BINDINGS` (each with an `id`, `show=True` for those in the footer). A view must look right
from 80x24 up to 160x45 and must not fail at 20x5; the screen has the classes `-narrow` (below 100 columns),
`-medium`, `-wide` (from 140) and `-short` (below 30 rows) for its CSS. The CSS of a view is its `DEFAULT_CSS`.

**A panel** implements `draw(view, width, height) -> lines`, a pure function of the `ViewState`, and `heading(view)`.
A line is a list of `Span(text, style, target)`. It never keeps data of its own but where its cursor or zoom stands, and
never asks for the time. It must cope with any width and height from 1x1 (panels are reused, small, in the cockpit:
no constructor arguments beside `id` and `classes`).

**Data.** `view.state` is the engine at the cursor (`mini_infer.observe.state`), `view.report` the step that led to
it, `view.past` everything older, as of the same moment: `past.columns(n)` and `past.mark(seq_id, column)` (timeline),
`past.rounds(seq_id)`, `past.k(seq_id)`, `past.block(block)`, `past.origins(seq_id)`, `past.events(n)`,
`past.durations(n)`, `past.requests` (ended ones too). `view.selected` is a sequence id (possibly ended),
`view.pinned` a block, `view.holders` block -> sequences. Never read a clock; times come with the reports.

**Looks.** A request is `view.letter(seq_id)` in `view.owner(seq_id)` (its hue, bold where selected) or
`f"on-owner-{view.hue(seq_id)}"`. Signs come from `view.glyphs` only. Text of tokens comes from `view.piece(id)` and
`view.decode(ids)`, which make it harmless; cut and measure text with `tui.text` (cells, not characters). A figure says
its denominator. Nothing is told by colour alone.

**Intents** go up as messages (`tui.messages`): a span with `Target("request", seq_id)`, `Target("block", "", n)` or
`Target("step", "", n)` posts them when clicked; keys post them from actions. Nobody but the app talks to the engine.

**Tests.** `tests.tui.support` runs a real engine on a model without tensors, with a fixed clock:
`run = tiny_run()`, `view = run.view(step=40, selected="r1")`, then
`plain(PoolGrid().draw(view, 52, 10))`; in an app: `app = ViewApp(BlocksView())`,
`async with app.run_test(size=(80, 24)) as pilot: app.show(view)`; messages are in `app.heard`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from textual.widget import Widget

from tui.model.view_state import ViewState
from tui.widgets.panel import Panel, plain


class View(Widget):
    """One way to look at the engine. `NAME` is its id in the app, `TITLE` the word on its tab."""

    NAME: ClassVar[str] = ""
    TITLE: ClassVar[str] = ""
    HELP: ClassVar[str] = ""
    """Markdown for F1: what is seen, what the signs mean, the keys."""

    DEFAULT_CSS = """
    View { width: 1fr; height: 1fr; layout: vertical; }
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.SCOPED_CSS = False  # its rules may name the classes of the screen; Textual looks into each class for this

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.view: ViewState | None = None

    @property
    def panels(self) -> list[Panel]:
        return list(self.query(Panel))

    def show(self, view: ViewState) -> None:
        """Show this from now on: the default hands it to every panel."""
        self.view = view
        for panel in self.panels:
            panel.show(view)

    def as_text(self) -> str:
        """What the view shows, as plain text, panel after panel: what `y` copies."""
        return "\n".join(plain(p.rows(p.view, p.size)) for p in self.panels if p.view is not None and p.display)
