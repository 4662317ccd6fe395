"""What views and panels ask for. The app alone answers; nothing else talks to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.message import Message

Action = Literal[
    "pause", "run", "step", "speed", "abort", "clear_cache", "draft_tokens", "drafting", "break_on", "load"
]


@dataclass
class RequestSelected(Message):
    """Look at this sequence, in all views."""

    seq_id: str | None


@dataclass
class BlockPinned(Message):
    """Inspect this block; None unpins."""

    block: int | None


@dataclass
class BlockHovered(Message):
    """The pointer or the grid's own cursor is on this block; None where it left."""

    block: int | None


@dataclass
class CursorMoved(Message):
    """Look at the engine after this step; None follows the newest."""

    step: int | None


@dataclass
class RoundOpened(Message):
    """Show the speculative round that a sequence had in that step."""

    seq_id: str
    step: int


@dataclass
class ViewOpened(Message):
    """Go to a view by its name."""

    name: str


@dataclass
class EngineCommand(Message):
    """Ask the engine for something. `value`: steps per second, a sequence id, K (None is automatic), …"""

    action: Action
    value: object = None


@dataclass
class Notice(Message):
    """Tell the person something, in a toast."""

    text: str
    severity: Literal["information", "warning", "error"] = "information"
