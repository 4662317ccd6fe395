"""The two themes. Every colour that is not Textual's own is a variable, so any other theme works too.

The eight hues of requests are those of Okabe and Ito, made lighter or darker until they read on the background.
"""

from __future__ import annotations

from textual.theme import Theme

_DARK_HUES = ("#56b4e9", "#e69f00", "#1fb890", "#d98bb8", "#6f9bff", "#ef7f45", "#f0e442", "#a8a8a8")
_LIGHT_HUES = ("#0072b2", "#9a6700", "#00714f", "#a0457a", "#3156c4", "#b84500", "#756b00", "#5c5c5c")


def _variables(hues: tuple[str, ...], **more: str) -> dict[str, str]:
    return {f"owner-{i}": hue for i, hue in enumerate(hues)} | {k.replace("_", "-"): v for k, v in more.items()}


DARK_VARIABLES = _variables(
    _DARK_HUES, frame="#3a4654", muted="#8a949e", faint="#5d6873", good="#5fd38d", bad="#ff6b6b", own="#f0a050",
    bonus="#7db7ff", shared_text="#101418", shared_back="#d8d4c0", live="#5fd38d", history="#f0a050", paused="#7db7ff",
)  # fmt: skip

LIGHT_VARIABLES = _variables(
    _LIGHT_HUES, frame="#b4bcc4", muted="#59636e", faint="#8b949e", good="#1a7f37", bad="#cf222e", own="#9a5b00",
    bonus="#0550ae", shared_text="#ffffff", shared_back="#4a4a3a", live="#1a7f37", history="#9a5b00", paused="#0550ae",
)  # fmt: skip

DARK = Theme(
    "mini-dark", primary="#56b4e9", secondary="#8a949e", accent="#f0a050", foreground="#e6e6e6", background="#101418",
    surface="#101418", panel="#1a2028", success="#5fd38d", warning="#f0a050", error="#ff6b6b", dark=True,
    variables=DARK_VARIABLES,
)  # fmt: skip

LIGHT = Theme(
    "mini-light", primary="#0072b2", secondary="#59636e", accent="#9a5b00", foreground="#1b1f24", background="#fbfbf9",
    surface="#fbfbf9", panel="#eef0f2", success="#1a7f37", warning="#9a5b00", error="#cf222e", dark=False,
    variables=LIGHT_VARIABLES,
)  # fmt: skip

THEMES = (DARK, LIGHT)


def defaults(dark: bool) -> dict[str, str]:
    """The variables that another theme does not have."""
    return DARK_VARIABLES if dark else LIGHT_VARIABLES
