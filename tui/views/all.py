"""The views that take the right part of the screen, in the order of their keys."""

from __future__ import annotations

from tui.views.base import View
from tui.views.blocks import BlocksView
from tui.views.cockpit import CockpitView
from tui.views.prefix import PrefixView
from tui.views.sched import SchedView
from tui.views.spec import SpecView
from tui.views.trace import TraceView

VIEWS: tuple[type[View], ...] = (CockpitView, BlocksView, SchedView, PrefixView, SpecView, TraceView)
