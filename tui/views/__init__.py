"""The views: one module each. `VIEWS` has those that take the right part of the screen, in the order of their keys."""

from __future__ import annotations

from tui.views.base import View
from tui.views.cockpit import CockpitView

VIEWS: tuple[type[View], ...] = (CockpitView,)
