"""The generator: the same everywhere, and its English and its numbers as promised."""

import itertools
import math
import random
import re
import subprocess
import sys

import pytest

from mini_infer.demo import plots, words
from mini_infer.demo.checks import story_faults, story_lexicon, tour_faults
from mini_infer.demo.corpus import SYSTEM_PROMPT, conversations, fingerprint, render
from mini_infer.demo.draw import article, held_out, joined, sentence
from mini_infer.demo.draw import words as words_of
from mini_infer.demo.stories import Story, make_story, most_repeated
from mini_infer.demo.tasks import make_task
from mini_infer.demo.train import CORPUS


def told(count, seed=5, **options):
    rng = random.Random(seed)
    return [make_story(rng, **options) for _ in range(count)]


def test_the_corpus_is_the_same_in_another_process_with_other_hash_seeds():
    code = "from mini_infer.demo.corpus import fingerprint; print(fingerprint(3, 200))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {fingerprint(3, 200)}


def test_the_corpus_is_the_one_that_training_expects():
    assert fingerprint(0) == CORPUS


def test_another_seed_gives_other_text():
    assert fingerprint(1, 50) != fingerprint(2, 50)


def test_there_are_a_billion_stories_and_more():
    slots = [
        len(words.SPECIES),
        len(words.TRAITS),
        len(words.FEMALE_NAMES),
        len(words.PLACES),
        len(words.PLACE_ADJECTIVES),
        len(plots.THINGS) * len(plots.THING_ADJECTIVES),
        len(plots.OBSTACLES["journey"]) * 3,
        len(words.SPECIES) - 1,
        len(plots.MORALS["journey"]),
    ]
    assert math.prod(slots) >= 10**9
    assert len({story.text for story in told(2000)}) == 2000


def test_every_story_of_the_grammar_passes_every_rule():
    for story in [*told(1500), *told(500, unseen=True)]:
        assert story_faults(story, story.text, "stop") == []


def test_stories_have_a_limited_lexicon():
    assert 500 <= len(story_lexicon()) <= 1200


def test_articles_agree():
    for story in told(1500):
        for wrong in (r"\ba [aeio]\w*", r"\ban (?!hour)[^aeiou\W]\w*"):
            assert not re.search(wrong, story.text), story.text


def test_no_slot_is_left_open_and_sentences_begin_with_capitals():
    for story in told(1000):
        assert not re.search(r"[{}]", story.text + story.request)
        assert not re.search(r'[.!?] "?[a-z]', story.text), story.text


def test_answers_about_a_story_are_in_it():
    for story in told(300):
        for question, answer in story.questions:
            subject = set(words_of(answer)) - set(words_of(story.text)) - set(words_of(question))
            assert subject <= {"helped", "was", "lived", "wanted", "learned"}, (answer, story.text)


def test_unseen_pairs_never_meet_in_training():
    species = "|".join(words.SPECIES)
    traits = "|".join(words.TRAITS)
    for turns in itertools.islice(conversations(11), 3000):
        for turn in turns:
            for trait, kind in re.findall(rf"about an? ({traits}) ({species})\b", turn.asked):
                assert not held_out(trait, kind), turn.asked
    for story in told(200, unseen=True):
        pairs = re.findall(rf"\b({traits}) ({species})\b", story.request)
        assert any(held_out(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: text.replace("She", "He").replace(" she ", " he "), "pronoun changes: he"),
        (lambda text: text.replace("fox", "owl"), "fox appears too seldom"),
        (lambda text: text.replace("Ruby", "Luna", 1), "nobody introduced Ruby"),
        (lambda text: text + " Quantum.", "not in the lexicon: quantum"),
        (lambda text: text[:100], "21 words"),
        (lambda text: text + " The fox was very happy now." * 3, "five words in a row 3 times"),
    ],
)
def test_the_rules_find(change, fault):
    text = (
        "Once upon a time, a brave fox named Ruby lived in a quiet forest. She always went first. One day, Ruby the "
        "fox wanted to see the sea. But the bridge was broken. Ruby did not know what to do. Then Ruby met a kind owl. "
        '"Can I help you?" asked the owl. The owl knew another way, and together they walked around the valley. At '
        "last, the fox saw the sea, and she danced. And the brave fox knew that there is always another way."
    )
    story = Story("Tell me a story about a brave fox.", text, ("fox",))
    assert story_faults(story, text, "stop") == []
    assert story_faults(story, text, "length") == ["ended by length"]
    assert fault in " ".join(story_faults(story, change(text), "stop"))


def test_tasks_repeat_their_prompts():
    rng = random.Random(2)
    shares = []
    for _ in range(500):
        turn = make_task(rng)[0]
        asked, answer = set(words_of(turn.asked)), words_of(turn.answer)
        shares.append(sum(word in asked for word in answer) / max(len(answer), 1))
    assert sum(shares) / len(shares) > 0.9


def test_rendering_is_chatml():
    turns = next(conversations(0))
    text = render(turns)
    assert text.startswith(
        f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n<|im_start|>user\n{turns[0].asked}<|im_end|>"
    )
    assert text.endswith(f"<|im_start|>assistant\n{turns[-1].answer}<|im_end|>\n")
    assert render(turns, None) == text.partition("<|im_end|>\n")[2]


def test_small_rules_of_english():
    assert [article(noun) for noun in ("owl", "fox", "unicorn", "old fox")] == [
        "an owl",
        "a fox",
        "a unicorn",
        "an old fox",
    ]
    assert sentence('"hello," he said') == '"Hello," he said'
    assert joined(["a", "b", "c"]) == "a, b and c"
    assert most_repeated("one two three four five one two three four five") == 2


def test_a_tour_answer_in_strange_words_is_found():
    from mini_infer.demo.tour import QUESTIONS

    question = QUESTIONS[0]
    assert tour_faults(question, question.answer, "stop") == []
    assert tour_faults(question, question.answer + " Xyzzy.", "stop") == ["not in the lexicon: xyzzy"]
