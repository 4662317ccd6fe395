"""The last 2,000 steps of an engine, kept encoded, and the state after any of them.

A state is the last keyframe at or before it and a fold of the reports since. A position in time is a step: news
without a step (paused, idle) belong to the step before them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from mini_infer.observe.events import StepReport, decode_report, encode
from mini_infer.observe.state import EngineState, Gap, decode_state, fold

KEPT_STEPS = 2_000
KEPT_BYTES = 16 << 20
KEYFRAME_STEPS = 64
"""Steps from one keyframe to the next, at least; more where a keyframe costs much more than the reports between."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The engine right after a report, and that report; None for the snapshot the history began with."""

    state: EngineState
    report: StepReport | None


class History:
    """Takes reports in order. `live` is the newest state.

    `needs_snapshot` is set where reports are missing (nothing is taken in until `restart`): ask the engine for one.
    """

    def __init__(self, snapshot: EngineState) -> None:
        self.needs_snapshot = False
        self._begin(snapshot)

    def _begin(self, snapshot: EngineState) -> None:
        self.live = Moment(snapshot, None)
        self._first = snapshot.seq + 1  # the seq of the oldest report kept
        self._reports: deque[tuple[int, bytes]] = deque()  # (step, report)
        self._keyframes: deque[tuple[int, int, bytes]] = deque()  # (seq, step, state)
        self._bytes = 0
        self._since = 0  # bytes of reports since the last keyframe
        self._cache: deque[Moment] = deque(maxlen=16)
        self._add_keyframe(snapshot)

    def restart(self, snapshot: EngineState) -> None:
        """Go on from a snapshot; what was before it can no longer be reached."""
        self.needs_snapshot = False
        self._begin(snapshot)

    def add(self, report: StepReport) -> bool:
        """Take the next report in; False (and `needs_snapshot`) where it does not follow. An old one is ignored."""
        if self.needs_snapshot or report.seq <= self.live.state.seq:
            return not self.needs_snapshot
        try:
            state = fold(self.live.state, report)
        except (Gap, ValueError):
            self.needs_snapshot = True
            return False
        self.live = Moment(state, report)
        data = encode(report)
        self._reports.append((report.step, data))
        self._bytes += len(data)
        self._since += len(data)
        _, step, frame = self._keyframes[-1]
        if state.step - step >= KEYFRAME_STEPS and 4 * self._since >= len(frame):
            self._add_keyframe(state)
        self._trim()
        return True

    def _add_keyframe(self, state: EngineState) -> None:
        data = encode(state)
        self._keyframes.append((state.seq, state.step, data))
        self._bytes += len(data)
        self._since = 0

    def _trim(self) -> None:
        """Drop the oldest stretch, from its keyframe to the next, while the rest is enough or all is too much."""
        while len(self._keyframes) > 1:
            seq, step, _ = self._keyframes[1]
            if self._bytes <= KEPT_BYTES and self.live.state.step - step < KEPT_STEPS:
                return
            self._bytes -= len(self._keyframes.popleft()[2])
            while self._first <= seq:
                self._bytes -= len(self._reports.popleft()[1])
                self._first += 1

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._bytes

    @property
    def newest(self) -> int:
        """The newest step."""
        return self.live.state.step

    @property
    def oldest(self) -> int:
        """The oldest step whose state can be told; never more than 2,000 steps back."""
        return max(self._keyframes[0][1], self.newest - KEPT_STEPS)

    def at(self, step: int) -> Moment:
        """The engine after a step (and the news that came before the next), and the report of that step.

        Steps out of reach give the nearest one.
        """
        if step >= self.newest:
            return self.live
        step = max(step, self.oldest)
        for moment in self._cache:
            if moment.state.step == step:
                return moment
        steps = [s for s, _ in self._reports]
        end = self._first + bisect_right(steps, step)  # the seq after the last report of that step
        frames = [seq for seq, _, _ in self._keyframes]
        seq, _, data = self._keyframes[max(0, bisect_right(frames, end - 1) - 1)]
        moment = Moment(decode_state(data), None)
        if seq >= self._first:
            moment = Moment(moment.state, decode_report(self._reports[seq - self._first][1]))
        self._cache.clear()
        for index in range(seq + 1 - self._first, end - self._first):
            report = decode_report(self._reports[index][1])
            state = fold(moment.state, report)
            if state.step == moment.state.step and self._cache:  # news without a step: the step's own report stays
                self._cache.pop()
                report = moment.report if moment.report is not None else report
            moment = Moment(state, report)
            self._cache.append(moment)
        return moment

    def recording(self) -> tuple[EngineState, list[StepReport]]:
        """All that is kept: a state, and every report after it."""
        _, _, frame = self._keyframes[0]
        return decode_state(frame), [decode_report(data) for _, data in self._reports]
