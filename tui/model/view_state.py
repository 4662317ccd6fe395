"""`ViewState`: all that a view draws from, one frozen value per refresh."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mini_infer.observe.events import StepReport
from mini_infer.observe.state import EngineState, SequenceState
from tui.glyphs import UNICODE, Glyphs
from tui.model.cursor import Cursor, Mode, mode_of
from tui.model.history import History
from tui.model.ledger import Ledger
from tui.model.lookback import Lookback
from tui.text import safe

ROLES = ("system", "user", "assistant", "model")


@dataclass(frozen=True)
class Meta:
    """What is known of the engine beside its reports."""

    model: str = ""
    draft: str = "none"
    device: str = ""
    dtype: str = ""
    speed: float | None = None  # most steps per second; None is full speed
    k: int | None = None  # drafts per round as set by hand; None is automatic (see `past.k` for what came of it)
    is_replay: bool = False  # nothing can be sent
    config: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ViewState:
    """The engine at the cursor, and where that is. Views draw from this and nothing else.

    `state` is the engine right after `report` (None: the beginning of what is known). `past` answers everything that
    is not in the state, as of the same report.
    """

    state: EngineState
    report: StepReport | None
    past: Lookback
    mode: Mode = Mode.LIVE
    behind: int = 0  # steps from the cursor to the newest
    selected: str | None = None  # a sequence id; it may have ended
    pinned: int | None = None  # a block
    glyphs: Glyphs = UNICODE
    meta: Meta = Meta()

    @cached_property
    def holders(self) -> dict[int, list[str]]:
        """The sequences that hold each block, in order of service."""
        return self.state.holders

    @property
    def sequence(self) -> SequenceState | None:
        """The selected sequence where it is alive."""
        return self.state.sequences.get(self.selected) if self.selected is not None else None

    def letter(self, seq_id: str) -> str:
        return self.past.letter(seq_id)

    def hue(self, seq_id: str) -> int:
        """0 to 7: the style `owner-N`."""
        return self.past.hue(seq_id)

    def owner(self, seq_id: str) -> str:
        """The style of a sequence: its hue, bold where it is selected, dim where another one is."""
        style = f"owner-{self.hue(seq_id)}"
        if seq_id == self.selected:
            return f"{style} bold"
        return style

    def piece(self, token: int) -> str:
        """A token's text, safe to draw, line ends as a sign; `<id>` where its text is not known."""
        text = self.state.pieces.get(token)
        return f"<{token}>" if text is None else safe(text, self.glyphs.newline)

    def decode(self, tokens: Iterable[int], newline: str | None = None) -> str:
        """The text of several tokens, safe to draw; line ends as a sign unless told otherwise."""
        pieces = self.state.pieces
        text = whole("".join(pieces.get(t, f"<{t}>") for t in tokens))
        return safe(text, self.glyphs.newline if newline is None else newline)

    def title(self, seq_id: str) -> str:
        """The last words of its prompt that a person wrote."""
        record = self.past.request(seq_id)
        if record is None:
            return ""
        if record.title is None:
            record.title = prompt_title(self.decode(record.prompt, "\n"))
        return record.title


def turns(text: str) -> list[tuple[str, str]]:
    """(role, text) of a rendered prompt: what stands between its special tokens, `<|…|>`. "" where no role is named."""
    found = []
    for part in text.replace("<|", "\0").split("\0"):
        body = part.split("|>", 1)[-1] if "|>" in part else part
        role, _, rest = body.strip().partition("\n")
        if role in ROLES:
            found.append((role, rest.strip()))
        elif body.strip():
            found.append(("", body.strip()))
    return found


_BYTES = re.compile(r"(?:\\x[89a-f][0-9a-f])+")


def whole(text: str) -> str:
    """Pieces of tokens put together: the bytes of a character that lay in several tokens are one character again."""
    return _BYTES.sub(lambda m: bytes.fromhex(m[0].replace("\\x", "")).decode(errors="backslashreplace"), text)


def prompt_title(text: str) -> str:
    """The last words that a person wrote in a rendered prompt."""
    said = [body for _, body in turns(text) if body]
    return " ".join(said[-1].split()) if said else ""


def view_state(
    history: History,
    ledger: Ledger,
    cursor: Cursor,
    glyphs: Glyphs = UNICODE,
    meta: Meta | None = None,
    *,
    paused: bool = False,
) -> ViewState:
    """What `cursor` shows of an engine. `paused`: it stands, whatever its own state says (a replay)."""
    moment = history.live if cursor.step is None else history.at(cursor.step)
    return ViewState(
        state=moment.state,
        report=moment.report,
        past=Lookback(ledger, moment.state.seq),
        mode=mode_of(cursor, paused or history.live.state.paused),
        behind=history.newest - moment.state.step,
        selected=cursor.selected,
        pinned=cursor.pinned,
        glyphs=glyphs,
        meta=meta or Meta(),
    )
