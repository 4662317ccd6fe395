"""Small dialogues: what to break on, the sampling parameters, a file."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from tui.model.breaks import KINDS, BreakOn
from tui.model.conversation import NAMES, Sampling

_CSS = """
    %s { align: center middle; background: $background 60%%; }
    %s Vertical { width: 60; max-width: 100%%; height: auto; max-height: 100%%; background: $panel;
                  border: solid $primary; padding: 0 1; overflow-y: auto; }
    %s Input, %s Input:focus { border: none; height: 1; background: $surface; margin: 0 0 0 2; padding: 0 1; }
    %s Label { height: 1; }
    %s OptionList { border: none; background: $panel; height: auto; }
"""


class BreakScreen(ModalScreen[BreakOn | None]):
    """Which conditions pause the engine."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f8", "done", "Done", id="break_done")]
    DEFAULT_CSS = _CSS % (("BreakScreen",) * 6)

    def __init__(self, breaks: BreakOn) -> None:
        super().__init__()
        self._breaks = breaks

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Pause right after a step in which …")
            yield OptionList(*(Option(self._words(kind), id=kind) for kind in KINDS), markup=False)
            yield Label("enter or click: set or clear   escape: done")

    def _words(self, kind: str) -> str:
        return f"[{'x' if kind in self._breaks.kinds else ' '}] {KINDS[kind]}"

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        kind = event.option_id or ""
        self._breaks = self._breaks.toggled(kind)
        event.option_list.replace_option_prompt(kind, self._words(kind))

    def action_done(self) -> None:
        self.dismiss(self._breaks)


class SamplingScreen(ModalScreen[Sampling | None]):
    """The sampling parameters of the next message; an empty field is the model's own."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", id="sampling_cancel"),
        Binding("enter", "done", "Set", id="sampling_done", priority=True),
    ]
    DEFAULT_CSS = _CSS % (("SamplingScreen",) * 6)

    def __init__(self, sampling: Sampling) -> None:
        super().__init__()
        self._sampling = sampling

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Sampling of the next message (empty: the model's own)")
            for name, kind in NAMES.items():
                yield Label(name)
                value = getattr(self._sampling, name)
                text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
                field = Input(text, id=f"sampling-{name}", type="number" if kind is float else "integer")
                field.cursor_blink = False
                yield field
            yield Static("", id="sampling-error", markup=False)
            yield Label("tab: next   enter: set   escape: cancel")

    def action_done(self) -> None:
        from mini_infer.errors import UserError
        from mini_infer.sampling.params import SamplingParams

        given: dict[str, float | int | None] = {}
        try:
            for name, kind in NAMES.items():
                text = self.query_one(f"#sampling-{name}", Input).value.strip()
                given[name] = kind(text) if text else None
            SamplingParams(**{n: v for n, v in given.items() if v is not None})  # type: ignore[arg-type]
        except (UserError, ValueError) as error:
            self.query_one("#sampling-error", Static).update(str(error))
            return
        self.dismiss(Sampling(**given))  # type: ignore[arg-type]

    def action_cancel(self) -> None:
        self.dismiss(None)


class TextScreen(ModalScreen[str | None]):
    """One line of text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", id="text_cancel")]
    DEFAULT_CSS = _CSS % (("TextScreen",) * 6)

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._question, markup=False)
            field = Input(self._value)
            field.cursor_blink = False
            yield field
            yield Label("enter: go on   escape: cancel")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        self.dismiss(None)
