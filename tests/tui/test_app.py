"""The app: every key changes the screen or the engine, and nothing that comes from outside breaks it."""

from __future__ import annotations

import re

import pytest

from tests.tui.driving import META, drive, frame, screen_text, scripted, toasts, until
from tests.tui.support import tiny_run
from tui.client.protocol import Loading
from tui.client.scripted import ScriptedClient
from tui.screens.choose import BreakScreen, SamplingScreen, TextScreen
from tui.screens.help import HelpScreen
from tui.strings import KEYS
from tui.widgets.engine_strip import TABS

SIZES = [(80, 24), (100, 30), (160, 45)]


@pytest.mark.parametrize("size", SIZES)
def test_the_strip_says_the_engines_figures(size) -> None:
    async def act(app, pilot):
        state = app.observer.history.live.state
        text = screen_text(app)
        for part in (
            f"step {state.step}",
            f"run {len(state.running)}",
            "▶ LIVE 10/s",
            "[1 Chat]" if size[0] < 100 else "[0 Cockpit]",
        ):
            assert part in text, part
        pool = state.pool
        figures = re.search(r"(\d+)(?: used)? ?\+ ?(\d+)(?: cached)? ?/ ?(\d+)", text)
        assert [int(g) for g in figures.groups()] == [pool.used, pool.cached, 24]

    drive(scripted(step=25), act, size)


def test_a_message_is_sent_shown_and_its_answer_followed_to_its_end() -> None:
    client = scripted(step=0)

    async def act(app, pilot):
        await pilot.press(*"hi", "ctrl+j", *"there", "enter")
        await until(app, pilot, lambda: "chat" in dict(client.asked))
        messages, params, _ = dict(client.asked)["chat"]
        assert messages == [{"role": "user", "content": "hi\nthere"}]
        assert params.max_tokens == 512
        assert "waiting for the engine" in screen_text(app)
        client.advance_to(20)
        await frame(app, pilot)
        assert app.observer.cursor.selected == "r1"
        assert "waiting for the engine" not in screen_text(app)
        assert "A ▸" in screen_text(app), screen_text(app)
        client.advance_to(10_000)
        await frame(app, pilot)
        assert not app.conversation.is_busy
        assert [m["role"] for m in app.conversation.messages] == ["user", "assistant"]
        await pilot.press(*"more", "enter")
        await until(app, pilot, lambda: len([1 for what, _ in client.asked if what == "chat"]) == 2)
        messages, _, _ = client.asked[-1][1]
        assert [m["role"] for m in messages] == ["user", "assistant", "user"]

    drive(client, act)


def test_a_message_that_is_refused_comes_back() -> None:
    client = scripted(step=0)
    client.refuse = "the prompt has 9 tokens too many"

    async def act(app, pilot):
        await pilot.press(*"hello", "enter")
        await until(app, pilot, lambda: toasts(app))
        assert toasts(app) == ["the prompt has 9 tokens too many"]
        assert app.composer.text == "hello"
        client.refuse = None
        await pilot.press("enter")
        await until(app, pilot, lambda: client.asked[-1][0] == "chat")

    drive(client, act)


def test_what_was_sent_before_comes_back_with_the_arrows() -> None:
    client = scripted(step=0)

    async def act(app, pilot):
        composer = app.composer
        for text in ("one", "two"):
            await pilot.press(*text, "enter")
            await until(app, pilot, lambda: app.conversation.request_id)
            app.conversation = type(app.conversation)()
        await pilot.press(*"new", "up")
        assert composer.text == "two"
        await pilot.press("up", "up")
        assert composer.text == "one"
        await pilot.press("down", "down")
        assert composer.text == "new"
        await pilot.press("enter", "enter")  # the second has nothing to send
        await until(app, pilot, lambda: len([1 for what, _ in client.asked if what == "chat"]) == 3)

    drive(client, act)


def test_loading_shows_how_far_it_is_and_typing_goes_on() -> None:
    client = ScriptedClient(None, meta=META)
    client.loading = Loading("loading weights", 250_000_000, 1_000_000_000)

    async def act(app, pilot):
        text = screen_text(app)
        assert "loading weights" in text
        assert "250 of 1,000 MB" in text
        await pilot.press(*"typed")
        assert app.composer.text == "typed"
        for key in ("escape", "w", "n", "comma", "end", "home", "y", "x", "ctrl+t", "ctrl+s", "f2", "f3", *"0123456"):
            await pilot.press(key)
        client.failed = "no such model: [/] take another"
        await frame(app, pilot)
        assert "no such model: [/] take another" in screen_text(app)
        assert toasts(app).count("no such model: [/] take another") == 1

    drive(client, act)


def test_a_gap_is_healed_by_asking_for_a_snapshot() -> None:
    client = scripted(step=10)

    async def act(app, pilot):
        client.lose(2)
        client.advance(3)
        await frame(app, pilot)
        assert ("resync", None) in client.asked
        assert app.observer.history.needs_snapshot or app.observer.history.newest == 0
        await frame(app, pilot)
        assert not app.observer.history.needs_snapshot

    drive(client, act)


def _told(client, what):
    return [value for name, value in client.asked if name == what]


def test_every_key_of_the_help_changes_the_screen_or_the_engine() -> None:
    client = scripted(step=30)
    seen: set[str] = set()

    async def act(app, pilot):
        async def press(*keys):
            seen.update(keys)
            await pilot.press(*keys)
            await frame(app, pilot)

        await press("escape")
        assert app.focused is None
        for number, name in enumerate(TABS):
            await press(str(number))
            assert app.strip.tab == name.lower()
        await press("f2")
        assert (client.is_paused, "■ PAUSED" in screen_text(app)) == (True, True)
        await press("f3")
        assert _told(client, "step") == [1]
        await press("full_stop")
        assert _told(client, "step") == [1, 1]
        await press("space")
        assert not client.is_paused
        newest = app.observer.history.newest
        await press("comma")
        assert f"HISTORY -1  step {newest - 1}" in screen_text(app)
        await press("left_square_bracket")
        assert app.observer.cursor.step == newest - 11
        await press("right_square_bracket")
        assert app.observer.cursor.step == newest - 1
        await press("home")
        assert app.observer.cursor.step == 0
        await press("full_stop")
        assert app.observer.cursor.step == 1
        await press("end")
        assert app.observer.cursor.step is None
        await press("f4")
        assert _told(client, "speed") == [30.0]
        await press("plus")
        assert _told(client, "speed") == [30.0, None]
        await press("minus")
        assert _told(client, "speed")[-1] == 30.0
        await press("n")
        first = app.observer.cursor.selected
        await press("n")
        second = app.observer.cursor.selected
        assert second != first
        await press("N")
        assert app.observer.cursor.selected == first
        await press("1")
        lens = app.chat.lens
        await press("ctrl+t")
        assert app.chat.lens != lens
        await press("w")
        assert toasts(app)[-1].startswith(app.view.letter(first))
        await press("k")
        assert _told(client, "k") == [4]
        await press("d")
        await press("d")
        assert _told(client, "k") == [4, 0, 4]
        await press("x")
        assert _told(client, "abort") == [first]
        await press("c")
        assert _told(client, "clear_cache") == [None]
        await press("ctrl+l")
        await until(app, pilot, lambda: len(_told(client, "chat")) == 6)
        await press("y")
        assert "tok out in" in app.clipboard
        for key, screen in (
            ("f8", BreakScreen), ("b", BreakScreen), ("f5", SamplingScreen), ("ctrl+s", TextScreen),
            ("ctrl+o", TextScreen), ("f1", HelpScreen), ("question_mark", HelpScreen),
        ):  # fmt: skip
            await press(key)
            assert isinstance(app.screen, screen), key
            await press("escape")
        await press("i")
        assert app.focused is app.composer
        await pilot.press(*"text")
        await press("ctrl+j")
        await press("up", "down")
        assert app.composer.text == "text\n"
        await press("enter")
        await until(app, pilot, lambda: app.conversation.request_id)
        await press("ctrl+c")
        assert _told(client, "abort")[-1] == app.conversation.request_id
        await press("ctrl+n")
        assert app.conversation.messages == ()
        await press("ctrl+p")
        assert app.screen is not app.screen_stack[0]
        await press("escape")
        await press("ctrl+q")
        assert not app.is_running

    drive(client, act, (100, 30))
    rows = [line.split("|")[1] for line in KEYS.splitlines() if line.startswith("| *")]
    shown = set(re.findall(r"\*([^*]+)\*", "".join(rows)))
    named = {"?": "question_mark", ".": "full_stop", ",": "comma", "[": "left_square_bracket",
             "]": "right_square_bracket", "+": "plus", "-": "minus", "…": ""}  # fmt: skip
    missing = {named.get(k, k if len(k) == 1 else k.lower()) for k in shown} - seen
    assert missing == set()


def test_breaks_and_sampling_are_set_in_their_dialogues() -> None:
    client = scripted(step=10)

    async def act(app, pilot):
        await pilot.press("escape", "f8", "down", "enter")
        assert "[x] a cached block is evicted" in screen_text(app)
        await pilot.press("escape")
        assert _told(client, "breaks") == [frozenset({"evict"})]
        client.stopped_for = "evict"
        await frame(app, pilot)
        assert toasts(app)[-1] == "paused: a cached block is evicted"
        await pilot.press("f5", *"0.5", "tab", *"7", "enter")
        await pilot.pause()
        assert "top_p" in screen_text(app)  # refused
        assert isinstance(app.screen, SamplingScreen)
        await pilot.press("backspace", *".9", "enter")
        await pilot.pause()
        assert (app.sampling.temperature, app.sampling.top_p, app.sampling.max_tokens) == (0.5, 0.9, 512)

    drive(client, act)


def test_the_help_has_the_view_the_keys_and_the_tour() -> None:
    async def act(app, pilot):
        await pilot.press("escape", "1", "f1")
        await pilot.pause()
        assert "draft that the target accepted" in screen_text(app)
        await pilot.press("f1")
        await pilot.pause()
        assert "Letters and digits work outside" in screen_text(app)
        await pilot.press("f1")
        await pilot.pause()
        assert "Send a message" in screen_text(app)

    drive(scripted(step=5), act, (100, 40))


def test_a_trace_is_saved_and_opened_again(tmp_path, monkeypatch) -> None:
    path = tmp_path / "saved.jsonl"
    client = scripted(step=30)

    async def act(app, pilot):
        app.save(tmp_path / "none" / "x.jsonl")
        await pilot.pause()
        assert "cannot be written" in toasts(app)[-1]
        app.save(path)
        state = app.observer.history.live.state
        app.open(str(tmp_path / "absent"))
        await pilot.pause()
        assert "cannot be read" in toasts(app)[-1]
        app.open(str(path))
        app.client.set_speed(None)
        await until(app, pilot, lambda: app.observer and app.observer.history.live.state == state)
        assert "REPLAY" in screen_text(app)
        app.open("")
        await frame(app, pilot)
        assert app.client is client

    drive(client, act)


def test_a_click_on_a_request_a_tab_and_the_mode() -> None:
    client = scripted(step=25)

    async def act(app, pilot):
        strip = app.strip
        at = screen_text(app).splitlines()[0].index("3 Sched")
        await pilot.click(strip, offset=(at, 0))
        assert strip.tab == "sched"
        at = screen_text(app).splitlines()[0].index("LIVE")
        await pilot.click(strip, offset=(at, 0))
        assert client.is_paused

    drive(client, act)


def test_all_of_it_in_ascii() -> None:
    async def act(app, pilot):
        for key in ("escape", "1", "2", "3", "4", "5", "6", "0"):
            await pilot.press(key)
            await frame(app, pilot)
            strange = {c for c in screen_text(app) if not c.isascii()} - set("日本é⏎▏…")
            assert not strange, (key, strange)

    for size in SIZES:
        drive(scripted(step=25), act, size, ascii=True)


@pytest.mark.parametrize("theme", ["mini-light", "nord", "textual-light"])
def test_any_theme_works(theme) -> None:
    async def act(app, pilot):
        assert "LIVE" in screen_text(app)

    drive(scripted(step=25), act, theme=theme)


def test_nothing_is_lost_when_thousands_of_steps_come_at_once() -> None:
    run = tiny_run()
    client = scripted(run, None)

    async def act(app, pilot):
        assert app.observer.history.live.state == run.history.live.state

    drive(client, act)
