"""The guide: enough questions, enough words for each, and answers that agree with each other and with the engine."""

import random
import re
from collections import Counter
from dataclasses import fields

import pytest

from mini_infer.config import EngineConfig
from mini_infer.demo.net import CONTEXT, draft_shape, target_shape
from mini_infer.demo.tour import (
    QUESTIONS,
    TOPICS,
    dialogue,
    direct,
    indirect,
    misses,
    ways,
    word_question,
    wordings,
)

TEXT = " ".join(question.answer for question in QUESTIONS)


def test_there_are_150_questions_with_ten_wordings_each():
    assert len(QUESTIONS) >= 150
    for question in QUESTIONS:
        assert len({text.lower() for *_, text in wordings(question)}) >= 10, question.cores
        assert len(ways(question, False)) >= 10, question.cores
        assert len(ways(question, True)) >= 1, question.cores


def test_no_wording_asks_two_questions():
    counts = Counter(text.lower() for question in QUESTIONS for *_, text in wordings(question))
    assert [text for text, count in counts.items() if count > 1] == []


def test_unseen_wordings_are_never_trained_on():
    rng = random.Random(1)
    for question in QUESTIONS:
        seen, unseen = set(ways(question, False)), set(ways(question, True))
        assert not seen & unseen
        assert word_question(rng, question, unseen=True) in unseen


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.cores[0])
def test_every_answer(question):
    assert 2 <= len(re.findall(r"[.?!](?: |$)", question.answer)) <= 5
    assert len(question.facts) >= 2
    assert misses(question, question.answer) == []


def test_no_answer_passes_for_another_question():
    for question in QUESTIONS:
        for other in QUESTIONS:
            if other is not question:
                assert misses(other, question.answer), (question.cores, other.cores)


def test_half_of_another_answer_is_found():
    one, other = QUESTIONS[0], QUESTIONS[3]
    assert any("belongs elsewhere" in fault for fault in misses(one, f"{one.answer} {other.answer}"))
    assert any("lacks" in fault for fault in misses(one, one.answer.split(".")[0]))


def test_direct_and_indirect_questions():
    assert direct("how|does|the pool|find/finds|a block") == "how does the pool find a block"
    assert indirect("how|does|the pool|find/finds|a block") == "how the pool finds a block"
    assert indirect("|can|two requests|share a block") == "whether two requests can share a block"
    assert indirect("which block|=|is evicted first|") == "which block is evicted first"
    assert indirect("why|did|my prefix|miss") == "why my prefix missed"


def test_follow_ups_continue_the_topic():
    rng = random.Random(4)
    answers = {topic.name: [question.answer for question in topic.questions] for topic in TOPICS}
    for _ in range(500):
        turns = list(dialogue(rng, 3))
        told = next(found for found in answers.values() if turns[0].answer in found)
        for turn in turns[1:]:
            assert turn.answer in told or turn.answer.startswith("That is all I know about")


def test_figures_agree_with_the_engine():
    defaults = EngineConfig()
    on_cpu = defaults.resolve("cpu")
    assert defaults.block_size == 16 and "the keys and values of sixteen tokens" in TEXT
    assert f"On a CPU the default is {on_cpu.max_batch_tokens}" in TEXT
    assert f"On a CPU the default is {on_cpu.max_running}" in TEXT
    assert on_cpu.max_chunk * 2 == on_cpu.max_batch_tokens and "half of the token budget" in TEXT
    assert f"For the demo it is {CONTEXT}" in TEXT
    target, draft = target_shape(4096), draft_shape(4096)
    assert (target.layers, draft.layers, target.heads, target.kv_heads) == (6, 1, 4, 2)
    assert "five million parameters in six layers" in TEXT and "one million in one layer" in TEXT
    assert "four query heads and two shared ones" in TEXT


def test_options_that_answers_name_exist():
    known = {field.name.replace("_", "-") for field in fields(EngineConfig)}
    known |= {
        "like",
        "draft",  # "takes options like temperature"
        "draft-tokens",
        "concurrency",
        "record",
        "replay",
        "temperature",
        "top-k",
        "min-p",
        "seed",
        "stop",
    }
    for option in re.findall(r"(?<!draft )options? ([a-z]+(?:-[a-z]+)*)", TEXT):
        assert option in known, option
