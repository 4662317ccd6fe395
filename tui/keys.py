"""The keys of the app, each with an id, so that they can be mapped to others."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from tui.widgets.engine_strip import TABS

_DISPLAY = {"escape": "Esc", "comma": ",", "full_stop": ".", "end": "End"} | {f"f{i}": f"F{i}" for i in range(1, 13)}


def _keys(*rows: tuple[str, str, str, bool]) -> list[BindingType]:
    """Bindings from (keys, action, description, in the footer), each with its action as id, for remapping."""
    return [
        Binding(keys, action, text, show=show, key_display=_DISPLAY.get(keys), id=f"{action}:{keys}")
        for keys, action, text, show in rows
    ]


BINDINGS: list[BindingType] = [
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
"""In the order of the footer."""
