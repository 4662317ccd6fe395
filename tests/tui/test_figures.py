"""What is put together from parts: characters from the pieces of several tokens, rates from the times of steps."""

from __future__ import annotations

import pytest

from mini_infer.observe.events import Durations
from tui.model.lookback import rate
from tui.model.records import StepRecord
from tui.model.view_state import whole


@pytest.mark.parametrize("text", ["Größe café", "中文", "שלום", "👨‍👩‍👧", "plain", "🙂x🙂"])
def test_a_character_of_several_tokens_is_one_again(text: str) -> None:
    pieces = [bytes([b]).decode(errors="backslashreplace") for b in text.encode()]
    assert whole("".join(pieces)) == text


def test_bytes_that_are_no_character_stay_visible() -> None:
    assert whole("a\\xc3") == "a\\xc3"
    assert whole("\\xe4\\xb8 b") == "\\xe4\\xb8 b"
    assert whole("\\x41 is no byte of a piece") == "\\x41 is no byte of a piece"


def step(seq: int, t: float, *, used: int = 3, tokens: int = 2, ms: float = 50.0) -> StepRecord:
    return StepRecord(seq, seq, t, True, {}, Durations(forward=ms), None, tokens, (), used)


def test_a_rate_counts_the_wait_of_an_engine_that_is_slowed_down() -> None:
    assert rate([step(1, 0.0), step(2, 0.1), step(3, 0.2)]) == pytest.approx(20)
    assert rate([step(1, 0.0)]) is None


def test_a_rate_leaves_out_idle_time_and_pauses() -> None:
    assert rate([step(1, 0.0, used=0), step(2, 60.0), step(3, 60.1)]) == pytest.approx(4 / 0.15)
    assert rate([step(1, 0.0), step(3, 60.0), step(4, 60.1)]) == pytest.approx(4 / 0.15)  # 2: the pause
