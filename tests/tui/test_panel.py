"""The base of panels: frames, cutting, styles, clicks, and that nothing breaks at any size."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from textual.geometry import Size

from tests.tui.support import ViewApp, tiny_run
from tui.glyphs import ASCII, UNICODE
from tui.messages import BlockPinned, CursorMoved, RequestSelected
from tui.model.view_state import ViewState
from tui.text import clip, clip_left, fit, safe, width
from tui.views.base import View
from tui.widgets.panel import Line, Panel, Span, Target, cut, plain


class Sample(Panel):
    def heading(self, view: ViewState) -> tuple[str, str]:
        return "left", "right"

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        first = [
            Span("A", "owner-0 bold", Target("request", "r1")),
            Span(" 日本 "),
            Span("b7", "", Target("block", "", 7)),
        ]
        return [first, [Span("step", "muted", Target("step", "", 4))], *([Span(f"line {i}")] for i in range(20))]


class SampleView(View):
    def compose(self):
        yield Sample()
        yield Sample()


def test_a_frame_holds_its_lines_at_every_size() -> None:
    view = tiny_run(steps=20).view()
    for glyphs in (UNICODE, ASCII):
        shown = run_view(glyphs)
        for w in range(40):
            for h in range(8):
                rows = Sample().rows(shown, Size(w, h))
                assert len(rows) <= max(h, 0)
                if w >= 4 and h >= 3:
                    assert {sum(width(s.text) for s in row) for row in rows} == {w}
    rows = Sample().rows(view, Size(30, 4))
    assert plain(rows).splitlines()[0] == "┌─ left " + "─" * 13 + " right ─┐"
    assert plain(rows).splitlines()[1].startswith("│ A 日本 b7")


def run_view(glyphs):
    return tiny_run(steps=20).view(glyphs=glyphs)


def test_glyphs_are_one_cell_each_and_ascii_is_ascii() -> None:
    for g in (UNICODE, ASCII):
        for name in g.__slots__:
            value = getattr(g, name)
            if name not in ("name", "enter", "arrows"):
                assert width(value) == len(value), name
            if g is ASCII:
                assert value.isascii(), name
    assert all(len(g.fill) == len(g.spark) == 8 for g in (UNICODE, ASCII))


def test_text_is_made_harmless() -> None:
    assert safe("a\x1b[31mb\r\nc\td\u202ee") == "a\ufffd[31mb\nc d\ufffde"
    assert safe("[bold]x[/]") == "[bold]x[/]"
    assert fit("日本語", 5) == "日本 "
    assert clip("abcdef", 4) == "abc…"
    assert clip_left("abcdef", 4) == "…def"
    assert clip("日本語", 5) == "日本…"
    assert [s.text for s in cut([Span("abc"), Span("日本")], 4)] == ["abc", " "]


def test_clicks_become_messages_and_styles_come_from_the_theme() -> None:
    async def main() -> None:
        app = ViewApp(SampleView())
        async with app.run_test(size=(40, 24)) as pilot:
            app.show(tiny_run(steps=20).view())
            await pilot.pause()
            panel = app.query(Sample).first()
            blue = panel.style("owner-0 bold")
            assert blue.bold
            assert blue.color is not None
            assert blue.color.triplet.hex == "#56b4e9"
            await pilot.click(panel, offset=(2, 1))
            await pilot.click(panel, offset=(9, 1))
            await pilot.click(panel, offset=(3, 2))
            assert [type(m) for m in app.heard] == [RequestSelected, BlockPinned, CursorMoved]
            assert (app.heard[0].seq_id, app.heard[1].block, app.heard[2].step) == ("r1", 7, 4)
            app.theme = "mini-light"
            await pilot.pause()
            assert panel.style("owner-0").color.triplet.hex == "#0072b2"
            assert "line 3" in app.shown.as_text()
            panel.scroll_lines(100)
            await pilot.pause()
            assert "line 19" in app.shown.as_text()
            for size in ((1, 1), (20, 5), (160, 45), (3, 50)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
            for name in ("nord", "textual-ansi"):
                if name in app.available_themes:
                    app.theme = name
                    await pilot.pause()

    asyncio.run(main())
