"""One line while the engine is not there: what is being loaded and how far, or why it never will be."""

from __future__ import annotations

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from tui.client.protocol import Loading
from tui.glyphs import UNICODE, Glyphs
from tui.text import clip, safe


class LoadingBar(Widget):
    COMPONENT_CLASSES = {"loading--bar", "loading--failed"}  # noqa: RUF012
    DEFAULT_CSS = """
    LoadingBar { height: 1; dock: top; background: $panel; }
    LoadingBar > .loading--bar { color: $primary; }
    LoadingBar > .loading--failed { color: $error; text-style: bold; }
    """

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self.glyphs = glyphs
        self._loading: Loading | None = Loading("starting")
        self._failed: str | None = None

    def show(self, loading: Loading | None, failed: str | None) -> None:
        """Hidden where there is nothing to say."""
        if (loading, failed) != (self._loading, self._failed):
            self._loading, self._failed = loading, failed
            self.display = loading is not None or failed is not None
            self.refresh()

    def render_line(self, y: int) -> Strip:
        base, cells, g = self.rich_style, self.size.width, self.glyphs
        if self._failed is not None:
            text = clip(f" {g.rejected} {safe(self._failed, ' ')}", cells, g.ellipsis)
            return Strip([Segment(text, self.get_component_rich_style("loading--failed"))]).adjust_cell_length(
                cells, base
            )
        loading = self._loading or Loading("")
        segments = [Segment(f" {loading.what} ", base)]
        if loading.total:
            size = max(1, min(40, cells - len(loading.what) - 24))
            full = size * loading.done // loading.total
            figures = f" {loading.done / 1e6:,.0f} of {loading.total / 1e6:,.0f} MB"
            bar = Segment(g.bar * full + g.bar_empty * (size - full), self.get_component_rich_style("loading--bar"))
            segments += [bar, Segment(figures, base)]
        return Strip(segments).adjust_cell_length(cells, base)
