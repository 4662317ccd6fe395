"""A conversation as it is written: the prompt's turns, the answer token by token under the lens, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from mini_infer.observe.events import Finished
from tui.model.lens import look
from tui.model.view_state import ViewState, turns
from tui.text import width
from tui.widgets.panel import Line, Panel, Span, Target, empty
from tui.widgets.wrapped import Wrapped, wrap

_INDENT = 5
LONGEST_TURN = 12
"""Lines of an earlier turn that are shown."""


class AnswerText(Panel):
    """The selected request. `lens` is one of `tui.model.lens.LENSES`; `pending` has been sent and has not arrived."""

    follows_end = True

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.lens = "off"
        self.pending = ""
        self._prompts: dict[str, list[tuple[str, str]]] = {}
        self._layout: tuple[str, int, int, Wrapped] | None = None  # sequence, cells, spans that were fed

    def heading(self, view: ViewState) -> tuple[str, str]:
        seq_id = view.selected
        if seq_id is None or view.past.request(seq_id) is None:
            return "chat", ""
        return f'{view.letter(seq_id)}  "{view.title(seq_id)}"', status(view, seq_id)

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        body = max(1, width - _INDENT)
        seq_id = view.selected
        record = view.past.request(seq_id) if seq_id is not None else None
        waiting = [*_said("you", self.pending, body), [Span("     waiting for the engine", "muted")]]
        if seq_id is None or record is None:
            return waiting if self.pending else _welcome(view, width)
        head: list[Line] = []
        for role, text in self._turns(view, seq_id, record.prompt):
            name = {"user": "you", "system": "sys", "assistant": "then", "model": "then", "": "ask"}[role]
            head += [*_said(name, text, body, "muted" if role == "system" else "", LONGEST_TURN), []]
        tail: list[Line] = [[], *_figures(view, seq_id, body)]
        if self.pending:
            tail += [[], *waiting]
        return self._answer(view, seq_id, body, head, tail)

    def _turns(self, view: ViewState, seq_id: str, prompt: tuple[int, ...]) -> list[tuple[str, str]]:
        if seq_id not in self._prompts:
            if len(self._prompts) > 32:
                self._prompts.clear()
            self._prompts[seq_id] = [(role, text) for role, text in turns(view.decode(prompt, "\n")) if text]
        return self._prompts[seq_id]

    def _answer(self, view: ViewState, seq_id: str, body: int, head: list[Line], tail: list[Line]) -> Sequence[Line]:
        spans = view.past.spans(seq_id)
        key, cells, fed, wrapped = self._layout or ("", 0, 0, Wrapped(1))
        if key != seq_id or cells != body or fed > len(spans):
            fed, wrapped = 0, Wrapped(body)
        for span in spans[fed:]:
            wrapped.feed(span.text, span.token)
        self._layout = (seq_id, body, len(spans), wrapped)
        return _Answer(view, seq_id, wrapped, self.lens, head, tail)


class _Answer(Sequence[Line]):
    """The lines of a conversation, made when they are looked at: an answer may have thousands."""

    def __init__(
        self, view: ViewState, seq_id: str, wrapped: Wrapped, lens: str, head: list[Line], tail: list[Line]
    ) -> None:
        self.view, self.seq_id, self.lens, self.head, self.tail = view, seq_id, lens, head, tail
        self.lines = wrapped.lines()
        self.origins = view.past.origins(seq_id)
        self.per_line = 1 if lens == "off" else 2
        self.length = len(head) + self.per_line * len(self.lines) + len(tail)

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> list[Line]: ...
    def __getitem__(self, index: int | slice) -> Line | list[Line]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.length))]
        if index < len(self.head):
            return self.head[index]
        number, mark = divmod(index - len(self.head), self.per_line)
        if number >= len(self.lines):
            return self.tail[index - len(self.head) - self.per_line * len(self.lines)]
        return self._marks(number) if mark else self._text(number)

    def _text(self, number: int) -> Line:
        view, g = self.view, self.view.glyphs
        first = f"{view.letter(self.seq_id)} {g.selected}  " if number == 0 else " " * _INDENT
        line = [Span(first, f"{view.owner(self.seq_id)} bold", Target("request", self.seq_id))]
        for text, token in self.lines[number]:
            style, target = "", None
            if token < len(self.origins):
                origin = self.origins[token]
                style = look(self.lens, origin, g)[0]
                target = Target("round" if origin.source != "plain" else "step", self.seq_id, origin.step)
            line.append(Span(text, style, target))
        if number == len(self.lines) - 1 and not view.past.is_ended(self.seq_id):
            line.append(Span(g.cursor, view.owner(self.seq_id)))
        return line

    def _marks(self, number: int) -> Line:
        line = [Span(" " * _INDENT)]
        for text, token in self.lines[number]:
            if token < len(self.origins):
                style, sign = look(self.lens, self.origins[token], self.view.glyphs)
                line.append(Span(sign * width(text), style))
        return line


def _said(name: str, text: str, cells: int, style: str = "", most: int = 1000) -> list[Line]:
    lines = wrap(text, cells)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"… {len(lines) - most + 1} more lines"]
    return [
        [Span(name.ljust(_INDENT) if i == 0 else " " * _INDENT, "muted"), Span(line, style)]
        for i, line in enumerate(lines)
    ]


def _welcome(view: ViewState, width: int) -> list[Line]:
    return [line for text in (
        "Ask something below, or press ^l for a background load.",
        "",
        "F1 explains what you see, ^p lists everything that can be done.",
    ) for line in (empty(part)[0] for part in (wrap(text, width) or [""]))]  # fmt: skip


def status(view: ViewState, seq_id: str) -> str:
    """What a sequence does at the cursor, in a word or two."""
    seq = view.state.sequences.get(seq_id)
    if seq is not None:
        if not seq.running:
            return "preempted, waiting" if seq.lost else "waiting"
        if seq.num_computed < len(seq.prompt):
            return f"prefill {seq.num_computed}/{len(seq.prompt)}"
        return "running"
    record = view.past.request(seq_id)
    finished: Finished | None = record.finished if record is not None and view.past.is_ended(seq_id) else None
    if finished is None:
        return "ended"
    return {"stop": "finished", "length": "finished (length)", "abort": "stopped", "error": "FAILED"}[finished.reason]


def _figures(view: ViewState, seq_id: str, cells: int) -> list[Line]:
    """How the prompt was read and the answer made."""
    past, g = view.past, view.glyphs
    record = past.request(seq_id)
    if record is None:
        return []
    lines: list[Line] = []
    prompt = len(record.prompt)
    if record.cached is not None and record.admitted_seq is not None and record.admitted_seq <= past.seq:
        share = 100 * record.cached // prompt
        read = f"prompt {prompt} tok: {record.cached} from cache ({share}%), {prompt - record.cached} to compute"
        chunks = past.chunks(seq_id)
        lines += _said("", f"{read}, {chunks} chunk{'s' if chunks != 1 else ''} done", cells, "muted")
    else:
        lines += _said("", f"prompt {prompt} tok, waiting to be admitted", cells, "muted")
    origins = past.origins(seq_id)
    if origins:
        steps = len({o.seq for o in origins})
        parts = [f"{len(origins)} tok out in {steps} target step{'s' if steps != 1 else ''}"]
        known = [o for o in origins if o.source != "unknown"]
        if record.first_t is not None and len(known) == len(origins):
            parts.append(f"TTFT {record.first_t - record.t:.2f} s")
        if len(known) > 1 and known[-1].t > known[0].t:
            parts.append(f"{(len(known) - 1) / (known[-1].t - known[0].t):.1f} tok/s")
        seq = view.state.sequences.get(seq_id)
        if seq is not None:
            parts.append(f"{len(seq.table)} blocks")
        lines += _said("", f" {g.dot} ".join(parts), cells, "muted")
    if past.is_ended(seq_id) and record.finished is not None:
        lines += _ending(view, record.finished, len(origins), cells)
    return lines


def _ending(view: ViewState, finished: Finished, shown: int, cells: int) -> list[Line]:
    g, lines = view.glyphs, list[Line]()
    if finished.reason == "error":
        lines += _said(f"   {g.rejected}", f"broken off: {finished.error or 'no reason given'}", cells, "bad bold")
    elif finished.reason == "abort":
        lines += _said(f"   {g.aborted}", "stopped, the answer is not complete", cells, "own")
    elif finished.reason == "length":
        lines += _said("", "cut at the longest answer allowed", cells, "own")
    missed = finished.usage.completion_tokens - shown
    if missed > 0:
        lines += _said("", f"{missed} tok were not seen: the screen lagged behind", cells, "own")
    return lines
