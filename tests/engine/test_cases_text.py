"""End tokens, stop strings and text on the whole engine, with answers steered to say what the case needs."""

from __future__ import annotations

import pytest

from mini_infer.errors import UserError
from mini_infer.sampling.params import SamplingParams
from tests.support.checkpoints import ENDOFTEXT, IM_END, IM_START
from tests.support.engines import Run, expected_greedy, prompt, run_one, steer, tiny_engine, tiny_tokenizer


def greedy(count, **more):
    return SamplingParams(temperature=0, max_tokens=count, **more)


def encode(text, kind="chatml"):
    return tiny_tokenizer(kind).encode(text, allow_special=False, add_special_tokens=False)


def stream(engine, params, ids=(5, 6, 7)):
    """The result, and the text of each report."""
    run = Run(engine)
    run.add(ids, params)
    (result,) = run.finish()
    deltas = [output.text for report in run.reports for output in report.outputs]
    assert "".join(deltas) == result.text
    return result, deltas


# --- end tokens -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [5, 9])
def test_L17_every_end_token_of_the_list_stops(end):
    """The ids a checkpoint states (generation_config.json's list wins over config.json) arrive as one tuple."""
    engine = tiny_engine(text="chatml", eos=(5, 9))
    said = encode("abc")[:3]
    steer(engine, [*said, end, 40, 41])
    result, _ = stream(engine, greedy(20))
    assert list(result.token_ids) == [*said, end]
    assert (result.finish_reason, result.choices[0].stop) == ("stop", end)
    assert result.usage.completion_tokens == 4
    assert result.text == tiny_tokenizer().decode(said)


@pytest.mark.parametrize("end", [5, 9])
def test_L19_ignore_eos_ignores_every_end_token(end):
    engine = tiny_engine(text="chatml", eos=(5, 9))
    steer(engine, [30, end, 31, end, end] + [32] * 15)
    result, _ = stream(engine, greedy(20, ignore_eos=True))
    assert (len(result.token_ids), result.finish_reason) == (20, "length")
    assert result.text == tiny_tokenizer().decode(result.token_ids)
    own, _ = stream(engine, greedy(20, ignore_eos=True, stop_token_ids=[31]))  # the request's own still end it
    assert (list(own.token_ids), own.choices[0].stop) == ([30, end, 31], 31)


def test_an_end_token_seen_anywhere_in_the_answer_ends_it_exactly_there():
    ids = prompt(20)
    answer = expected_greedy(ids, 12)
    for at, token in enumerate(answer):
        if token in answer[:at]:
            continue
        for engine, params in (
            (tiny_engine(text="chatml", eos=(token,)), greedy(12)),
            (tiny_engine(text="chatml"), greedy(12, stop_token_ids=[token])),
        ):
            result = run_one(engine, ids, params)
            assert list(result.token_ids) == answer[: at + 1]
            assert (result.finish_reason, result.choices[0].stop) == ("stop", token)
            assert result.text == run_one(tiny_engine(text="chatml"), ids, greedy(at)).text if at else not result.text


def test_a_stop_at_the_very_first_token():
    engine = tiny_engine(text="chatml", eos=(IM_END,))
    steer(engine, [IM_END])
    result, deltas = stream(engine, greedy(10))
    assert (result.text, list(result.token_ids), result.finish_reason) == ("", [IM_END], "stop")
    assert result.usage.completion_tokens == 1
    assert deltas == [""]
    engine = tiny_engine(text="chatml")
    steer(engine, encode("x") + encode("y"))
    result, _ = stream(engine, greedy(10, stop="x"))
    assert (result.text, list(result.token_ids), result.choices[0].stop) == ("", encode("x"), "x")


def test_max_tokens_1_gives_its_token_and_its_text():
    engine = tiny_engine(text="chatml")
    steer(engine, encode(" bada"))
    result, _ = stream(engine, greedy(1))
    assert (list(result.token_ids), result.finish_reason) == (encode(" bada")[:1], "length")
    assert result.text == tiny_tokenizer().decode(encode(" bada")[:1])
    steer(engine := tiny_engine(text="chatml", eos=(IM_END,)), [IM_END])
    result, _ = stream(engine, greedy(1))
    assert result.finish_reason == "stop"  # the end was reached, also where it is the last token allowed


def test_control_tokens_in_an_answer_are_ids_but_no_text():
    engine = tiny_engine(text="chatml", eos=(IM_END,))
    said = [*encode("a"), IM_START, ENDOFTEXT, *encode("b"), IM_END]
    steer(engine, said)
    result, _ = stream(engine, greedy(20))
    assert (result.text, list(result.token_ids)) == ("ab", said)


# --- min_tokens -----------------------------------------------------------------------------------------------------


def test_min_tokens_bans_end_tokens_until_then():
    ids = prompt(20)
    answer = expected_greedy(ids, 12)
    end = answer[3]
    for least in range(8):
        engine = tiny_engine(eos=(end,))
        result = run_one(engine, ids, greedy(12, min_tokens=least))
        if least <= 3:
            assert list(result.token_ids) == answer[:4]
        else:
            assert list(result.token_ids[:3]) == answer[:3]
            assert end not in result.token_ids[:least]
            assert len(result.token_ids) >= least
    free = run_one(tiny_engine(eos=(end,)), ids, greedy(12, min_tokens=5, ignore_eos=True))
    assert list(free.token_ids) == answer  # an end token that ends nothing is not banned


def test_min_tokens_lets_stop_strings_pass_until_then():
    engine = tiny_engine(text="chatml")
    letters = [encode(c)[0] for c in "axbxcxdxex"]
    steer(engine, letters)
    found = {
        least: stream(engine, greedy(10, stop=["x"], min_tokens=least))[0].text for least in (0, 1, 2, 3, 4, 5, 10)
    }
    assert found == {0: "a", 1: "a", 2: "a", 3: "axb", 4: "axb", 5: "axbxc", 10: "axbxcxdxe"}


def test_a_stop_string_over_the_edge_of_min_tokens_counts_when_it_ends_after_it():
    engine = tiny_engine(text="chatml")
    steer(engine, [encode(c)[0] for c in "abcdef"])
    assert stream(engine, greedy(6, stop=["cd"], min_tokens=4))[0].text == "ab"
    assert stream(engine, greedy(6, stop=["cd"], min_tokens=5))[0].text == "abcdef"


def test_min_tokens_and_every_token_banned_is_an_error_of_its_own_request():
    run = Run(tiny_engine())
    run.add(prompt(5), greedy(4, min_tokens=2, stop_token_ids=list(range(384))))
    run.add(prompt(6), greedy(4))
    masked, healthy = run.finish()
    assert (masked.finish_reason, masked.token_ids) == ("error", ())
    assert "banned" in masked.error
    assert list(healthy.token_ids) == expected_greedy(prompt(6), 4)


# --- text -----------------------------------------------------------------------------------------------------------

SAMPLE = "héllo 😀 日本 👩‍👩‍👧 🇨🇭"


def test_T03_characters_over_several_tokens_come_whole():
    engine = tiny_engine(text="chatml", eos=(IM_END,))
    steer(engine, [*encode(SAMPLE), IM_END])
    assert len(encode(SAMPLE)) > len(SAMPLE)
    result, deltas = stream(engine, greedy(100))
    assert result.text == SAMPLE
    assert not any("�" in delta for delta in deltas)


def test_T03_a_character_cut_off_by_max_tokens_is_one_mark_at_the_end():
    engine = tiny_engine(text="chatml")
    steer(engine, encode("a😀"))
    result, deltas = stream(engine, greedy(3))
    assert result.text == "a�"
    assert deltas[-1] == "�"
    run = Run(engine)
    request_id = run.add([1, 2], greedy(5))
    run.step()
    run.step()
    run.step()
    engine.abort(request_id)
    assert run.finish()[0].text == "a�"


def test_T06_metaspace_keeps_its_spaces():
    said = "one two  three\n four"
    ids = encode(said, "llama")
    before = tiny_tokenizer("llama").encode("zero", allow_special=False)
    engine = tiny_engine(text="llama", eos=(2,))
    steer(engine, [*ids, 2])
    result, deltas = stream(engine, greedy(50), before)
    assert result.text == " " + said  # a word after the prompt, not its continuation
    assert "".join(deltas) == tiny_tokenizer("llama").decode([*before, *ids]).removeprefix("zero")


@pytest.mark.parametrize("caching", [True, False])
def test_T07_a_stop_string_over_two_tokens(caching):
    words = ["alpha", " beta", " gamma", " delta"]
    engine = tiny_engine(text="chatml", prefix_cache=caching)
    steer(engine, [token for word in words for token in encode(word)])
    result, deltas = stream(engine, greedy(60, stop=["ta gam"]))
    assert result.text == "alpha be"
    assert (result.finish_reason, result.choices[0].stop) == ("stop", "ta gam")
    sent = ""
    for delta in deltas:
        sent += delta
        assert "alpha be".startswith(sent)
    upto = sum(len(encode(word)) for word in words[:2])
    assert upto < result.usage.completion_tokens == len(result.token_ids) <= upto + len(encode(words[2]))


def test_T09_words_flow_while_a_long_stop_string_is_looked_for():
    words = [" bada", " dabi", " fadu", " gade", " kado", " lada", " mada", " nada", " pada", " rada"]
    said = [token for word in words for token in encode(word)]
    engine = tiny_engine(text="chatml")
    steer(engine, said)
    result, deltas = stream(engine, greedy(len(said), stop=["@" * 24]))
    assert result.text == "".join(words)
    assert all(deltas)  # every token brings its text at once
    assert len(deltas) == len(said)


def test_held_back_text_is_released_at_every_kind_of_end():
    for more, reason in (({}, "length"), ({"stop_token_ids": [encode("z")[0]]}, "stop")):
        engine = tiny_engine(text="chatml")
        steer(engine, [encode(c)[0] for c in "ab<<z"])
        result, _ = stream(engine, greedy(4 if reason == "length" else 9, stop=["<<<"], **more))
        assert (result.text, result.finish_reason) == ("ab<<", reason)
    run = Run(engine)
    request_id = run.add([1], greedy(9, stop=["<<<"]))
    for _ in range(4):
        run.step()
    engine.abort(request_id)
    assert run.finish()[0].text == "ab<<"


def test_T12_empty_and_odd_stop_texts():
    for none in (None, [], ()):
        assert SamplingParams(stop=none).stop == ()
    for bad in ("", [""], ["a", ""], 5, [5], {"a": 1}):
        with pytest.raises(UserError, match="stop"):
            SamplingParams(stop=bad)
    engine = tiny_engine(text="chatml")
    steer(engine, [encode(c)[0] for c in "qrste"])
    assert stream(engine, greedy(5, stop=["a", "b", "c", "d", "e"]))[0].text == "qrst"
    assert stream(engine, greedy(5, stop=[]))[0].text == "qrste"


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(UserError, match="tokenizer"):
        tiny_engine().add_request([1, 2], greedy(3, stop=["x"]))


def test_of_several_stop_strings_the_one_that_ends_first_wins():
    engine = tiny_engine(text="chatml")
    steer(engine, [encode(c)[0] for c in "abcdef"])
    result, _ = stream(engine, greedy(6, stop=["cde", "d", "bcdef"]))
    assert (result.text, result.choices[0].stop) == ("abc", "d")


def test_each_choice_has_a_text_of_its_own():
    engine = tiny_engine(text="chatml")
    texts = ["ab<c", "x", "zzst", "é😀"]
    steer(engine, lambda row: encode(texts[row.choice]))
    run = Run(engine)
    run.add([1, 2], SamplingParams(temperature=0, max_tokens=6, n=4, stop=["<", "st"]))
    (result,) = run.finish()
    for choice, text in zip(result.choices, ("ab", "x", "zz", "é😀"), strict=True):
        assert choice.text.startswith(text)
    assert [c.stop for c in result.choices][::2] == ["<", "st"]


def test_text_survives_preemption_in_the_middle_of_a_character():
    engine = tiny_engine(num_blocks=30, block_size=4, text="chatml", eos=(IM_END,))
    said = encode(SAMPLE * 2)
    steer(engine, [*said, IM_END])
    run = Run(engine)
    for i in range(6):
        run.add(encode("abcdefgh"[: 3 + i]), greedy(200))
    results = run.finish()
    assert engine.scheduler.preemptions >= 5
    assert [r.text for r in results] == [SAMPLE * 2] * 6
