"""Stop strings in streamed text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Finds the first stop string in text that comes in pieces, in time linear in the text (Aho and Corasick, 1975).

    The match that ends first wins, of those the longest; how the text is cut into pieces makes no difference. Text is
    held back only as long as it could be the beginning of a stop string. Raises ValueError for an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(stops):
            raise ValueError("stop strings must be a list of texts that are not empty")
        # A node stands for a beginning of a stop string; node 0 for the empty one.
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._ends = [""]  # the longest stop string that ends here
        self._fallback = [0]  # the longest proper end of this node's text that is a node itself
        for stop in stops:
            self._add(stop)
        self._link()
        self._node = 0
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str, may_stop: bool = True) -> tuple[str, str | None]:
        """(text that may be shown now, the stop string that was met, if any). On a match the text before it is
        released; the match and all after it are dropped. `may_stop=False`: a stop string that ends in this text is
        text like any other."""
        if self._matched is not None:
            return "", self._matched
        pending = self._held + text
        node = self._node
        for end, char in enumerate(text, start=len(self._held) + 1):
            while node and char not in self._next[node]:
                node = self._fallback[node]
            node = self._next[node].get(char, 0)
            if may_stop and self._ends[node]:
                self._held, self._matched = "", self._ends[node]
                return pending[: end - len(self._matched)], self._matched
        self._node = node
        cut = len(pending) - self._depth[node]
        self._held = pending[cut:]
        return pending[:cut], None

    def flush(self) -> str:
        """What is still held back, at the end of the text."""
        held, self._held, self._node = self._held, "", 0
        return held

    def _add(self, stop: str) -> None:
        node = 0
        for char in stop:
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._ends.append("")
                self._fallback.append(0)
            node = self._next[node][char]
        self._ends[node] = stop

    def _link(self) -> None:
        """Breadth first, so that the fallback of a node, which is less deep, is complete before it is used."""
        queue = deque(self._next[0].values())
        while queue:
            parent = queue.popleft()
            for char, node in self._next[parent].items():
                fallback = self._fallback[parent]
                while fallback and char not in self._next[fallback]:
                    fallback = self._fallback[fallback]
                self._fallback[node] = self._next[fallback].get(char, 0)
                self._ends[node] = self._ends[node] or self._ends[self._fallback[node]]
                queue.append(node)
