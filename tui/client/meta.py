"""What a screen says of an engine beside its state, from its options: the same for a live one and for its recording."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from tui.model.view_state import Meta


def meta_of(config: Mapping[str, object], *, is_replay: bool = False) -> Meta:
    """`config`: the knobs of `EngineConfig` by name, as in the header of a trace."""

    def word(name: str) -> str:
        value = config.get(name)
        return "" if value in (None, "auto") else str(value)

    draft = word("draft") or ("demo" if word("model") == "demo" else "none")
    draft_tokens = config.get("draft_tokens")
    return Meta(
        model=PurePath(word("model")).name,
        draft=PurePath(draft).name,
        device=word("device"),
        dtype=word("dtype"),
        k=draft_tokens if isinstance(draft_tokens, int) else None,
        is_replay=is_replay,
        config=dict(config),
    )
