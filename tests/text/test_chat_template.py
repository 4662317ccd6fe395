"""Where templates come from, what they may do, and how they fail."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from mini_infer.errors import UserError
from mini_infer.text import template_sandbox
from mini_infer.text.chat_template import ChatTemplate
from mini_infer.text.messages import plain_messages
from mini_infer.text.tokenizer import Tokenizer
from tests.support import tokenizers as make

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "sum", "parameters": {"type": "object", "properties": {}}}}


def render(source: str, messages: list[dict[str, Any]] = HELLO, **keywords: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **keywords)


def chat_text(tokenizer: Tokenizer, messages: Any = HELLO, **keywords: Any) -> str:
    return tokenizer.decode(tokenizer.encode_chat(messages, **keywords), skip_special_tokens=False)


# --- where they come from


def test_L21_a_template_in_a_file_of_its_own_is_found_and_wins(tmp_path: Path) -> None:
    folder = make.write_chatml(tmp_path, template=None)
    assert not make.load(folder).has_chat_template
    (folder / "chat_template.jinja").write_text("file: {{ messages[0].content }}", encoding="utf-8")
    assert chat_text(make.load(folder)) == "file: Hello"
    make.write_chatml(tmp_path, template="configuration: {{ messages[0].content }}")
    assert chat_text(make.load(folder)) == "file: Hello"
    (folder / "chat_template.jinja").unlink()
    assert chat_text(make.load(folder)) == "configuration: Hello"


def test_L21_named_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    tokenizer = make.load(make.write_chatml(tmp_path, template=named))
    assert chat_text(tokenizer) == "plain"
    assert chat_text(tokenizer, tools=[]) == "plain"
    assert chat_text(tokenizer, tools=[TOOL, TOOL]) == "2 tools"


def test_L21_named_templates_in_a_folder(tmp_path: Path) -> None:
    folder = make.write_chatml(tmp_path, template="configuration")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert (chat_text(make.load(folder)), chat_text(make.load(folder), tools=[TOOL])) == ("configuration", "with tools")
    (folder / "chat_template.jinja").write_text("file")
    assert (chat_text(make.load(folder)), chat_text(make.load(folder), tools=[TOOL])) == ("file", "with tools")


def test_L21_templates_without_a_default(tmp_path: Path) -> None:
    only = make.load(make.write_chatml(tmp_path / "a", template=[{"name": "rag", "template": "the only one"}]))
    assert chat_text(only) == "the only one"
    several = [{"name": "rag", "template": "x"}, {"name": "code", "template": "y"}]
    with pytest.raises(UserError, match="named rag, code, but none named default"):
        make.load(make.write_chatml(tmp_path / "b", template=several)).encode_chat(HELLO)


@pytest.mark.parametrize("template", [None, "", " \n", []])
def test_L23_without_a_template_chat_says_so_and_raw_prompts_work(tmp_path: Path, template: Any) -> None:
    tokenizer = make.load(make.write_chatml(tmp_path, template=template))
    assert not tokenizer.has_chat_template
    with pytest.raises(UserError, match=r"no chat template; .*chat_template\.jinja.*--raw"):
        tokenizer.encode_chat(HELLO)
    assert tokenizer.decode(tokenizer.encode("Hello", allow_special=True)) == "Hello"


def test_a_broken_template_stops_chat_alone(tmp_path: Path) -> None:
    tokenizer = make.load(make.write_chatml(tmp_path, template="{% for %}"))
    assert tokenizer.encode("x", allow_special=True)
    with pytest.raises(UserError, match="not valid Jinja"):
        tokenizer.encode_chat(HELLO)


# --- what they may do


def test_whitespace_of_blocks_is_trimmed_as_templates_expect() -> None:
    assert render("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}\n") == "x\n"


def test_tools_variables_and_the_generation_prompt_reach_the_template() -> None:
    source = "{{ tools | tojson }}{{ thinking }}{{ add_generation_prompt }}{{ bos_token }}{{ documents is none }}"
    assert render(source, tools=[{"a": "é<'&"}], variables={"thinking": False}) == '[{"a": "é<\'&"}]FalseTrue<s>True'
    assert render("{{ tools is none }}{{ eos_token }}") == "True"


def test_tojson_takes_the_options_of_the_reference() -> None:
    source = "{{ x | tojson(indent=1) }}{{ x | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}"
    assert render(source, variables={"x": {"b": "é", "a": 1}}) == '{\n "b": "é",\n "a": 1\n}{"a":1,"b":"\\u00e9"}'


def test_loops_breaks_macros_namespaces_dates_and_generation_marks() -> None:
    source = (
        "{%- macro show(text) %}({{ text }}){% endmacro %}{% set ns = namespace(n=0) %}"
        "{% for m in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}{% set ns.n = ns.n + 1 %}"
        "{% generation %}{{ show(m.content) }}{% endgeneration %}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}"
        "{% if not loop.last %}{{ loop.nextitem.content }}{% endif %}{% endfor %}{{ ns.n }}"
        "{{ strftime_now('%Y') | length }}"
    )
    messages = [{"role": "user", "content": text} for text in "abc"]
    assert render(source, messages) == "(a)False33b(b)False32c24"


def test_recursive_loops_and_items() -> None:
    source = "{% for k, v in x.items() recursive %}{{ k }}{% if v %}<{{ loop(v.items()) }}>{% endif %}{% endfor %}"
    assert render(source, variables={"x": {"a": {"b": {}}, "c": {}}}) == "a<b>c"


def test_a_missing_variable_is_empty() -> None:
    assert render("[{{ nothing }}{% if nothing %}x{% endif %}{% for a in nothing %}x{% endfor %}]") == "[]"


def test_content_parts_are_joined_with_nothing_between(tmp_path: Path) -> None:
    tokenizer = make.load(make.write_chatml(tmp_path))
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    assert tokenizer.encode_chat([{"role": "user", "content": parts}]) == tokenizer.encode_chat(
        [{"role": "user", "content": "abcd"}]
    )
    assert tokenizer.encode_chat([{"role": "user", "content": []}]) == tokenizer.encode_chat(
        [{"role": "user", "content": ""}]
    )


def test_a_template_that_reads_only_parts_gets_parts(tmp_path: Path) -> None:
    source = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    tokenizer = make.load(make.write_chatml(tmp_path, template=source))
    assert chat_text(tokenizer) == "Hello"
    assert chat_text(tokenizer, [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]) == "Hi"


def test_null_keys_are_left_out_and_reasoning_is_found_under_each_name() -> None:
    source = (
        "{% for m in messages %}{{ m.tool_calls is defined }} {{ m.content }} {{ m.reasoning_content }};{% endfor %}"
    )
    for name in ("reasoning_content", "reasoning", "thinking"):
        messages = plain_messages([{"role": "assistant", "content": "a", "tool_calls": None, name: "because"}])
        assert render(source, messages) == "False a because;"


# --- how they fail


def test_T15_the_templates_own_sentence_is_passed_on(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    tokenizer = make.load(make.write_chatml(tmp_path, template=source))
    assert chat_text(tokenizer) == "Hello"
    with pytest.raises(UserError, match=r"refuses these messages: no system role here$"):
        tokenizer.encode_chat([{"role": "system", "content": "x"}, *HELLO])
    with pytest.raises(UserError, match=r"refuses these messages: roles must alternate$"):
        tokenizer.encode_chat([*HELLO, *HELLO])


def test_T15_a_sentence_over_several_lines_stays_one_line() -> None:
    with pytest.raises(UserError, match=r"refuses these messages: one two$"):
        render("{{ raise_exception('one\n  two') }}")


FAILING = {
    "syntax": "{% for x in %}",
    "unknown block": "{% frobnicate %}",
    "unknown filter": "{{ x | frobnicate }}",
    "undefined": "{{ messages[0].nothing.at_all }}",
    "not there": "{{ messages[7].content }}",
    "wrong type": "{{ messages[0].content + 1 }}",
    "division": "{{ 1 // 0 }}",
    "no json": "{{ namespace() | tojson }}",
    "no file": "{% include 'etc/passwd' %}",
    "python": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "python by attribute": "{{ (''|attr('__class__')).__mro__ }}",
    "python by format": "{{ '{0.__class__.__mro__}'.format('') + (1).real }}",
    "change of the input": "{{ messages.append(1) }}",
    "huge range": "{{ range(10 ** 9) | list }}",
    "long range": "{% for i in range(1000000000) %}{% endfor %}",
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "nested texts": "{% set s = 'x' * 9999 %}{% for a in s %}{% for b in s %}{{ a }}{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "wide recursion": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "long text": "{{ 'x' * 10 ** 10 }}",
    "doubled text": "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "added text": "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "centred": "{{ 'x'.center(10 ** 10) }}",
    "centred by a filter": "{{ 'x' | center(10 ** 10) }}",
    "centred each": "{{ ['x', 'y'] | map('center', 10 ** 10) | list }}",
    "centred often": "{% for i in range(99999) %}{% set x = 'x'.center(10 ** 7) %}{% endfor %}",
    "centred and kept": "{{ range(99999) | map('center', 10 ** 7) | list | length }}",
    "by a method of its own": "{% set f = 'x'.ljust %}{{ f(10 ** 10) }}",
    "right": "{{ 'x'.rjust(10 ** 10) }}",
    "zeros": "{{ '1'.zfill(10 ** 10) }}",
    "tabs": "{{ ('\\t' * 1000).expandtabs(10 ** 8) }}",
    "bytes": "{{ 'x'.encode().center(10 ** 10) }}",
    "bytes of a number": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "replaced": "{{ ('x' * 10 ** 6).replace('x', 'y' * 10 ** 6) }}",
    "replaced by a filter": "{{ ('x' * 10 ** 6) | replace('x', 'y' * 10 ** 6) }}",
    "nothing replaced": "{{ ('x' * 10 ** 6).replace('', 'y' * 10 ** 6) }}",
    "translated": "{{ ('x' * 10 ** 6).translate({120: 'y' * 10 ** 6}) }}",
    "joined": "{{ ('y' * 10 ** 6).join('x' * 10 ** 6) }}",
    "joined by a filter": "{{ ('x' * 10 ** 6) | join('y' * 10 ** 6) }}",
    "joined from one": "{{ ([('x' * 10 ** 7)] * 1000) | join }}",
    "width": "{{ '{:>9999999999}'.format('x') }}",
    "width from outside": "{{ '{:>{}}'.format('x', 10 ** 10) }}",
    "width of a percent": "{{ '%9999999999d' % 1 }}",
    "width by a star": "{{ '%*d' % (10 ** 10, 1) }}",
    "width by a filter": "{{ '%9999999999d' | format(1) }}",
    "indented": "{{ ('x\\n' * 1000) | indent(10 ** 8) }}",
    "indented JSON": "{{ messages | tojson(indent=10 ** 10) }}",
    "printed list": "{{ ['x' * 10 ** 7] * 1000 }}",
    "list in a text": "{{ 'x' ~ (['x' * 10 ** 7] * 1000) }}",
    "one text many times": "{% set x = 'x' * 10 ** 7 %}{% for i in range(9999) %}{{ x }}{% endfor %}",
    "a block of many": "{% set x = 'x' * 10 ** 7 %}{% set y %}"
    + "{% for i in range(9999) %}{{ x }}{% endfor %}{% endset %}",
    "many in one": "{% set x = 'x' * 10 ** 7 %}{{ " + " ~ ".join(["x"] * 900) + " }}",
    "rounded": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "batches": "{{ [1] | batch(10 ** 9, 0) | list }}",
    "slices": "{{ [1] | slice(10 ** 9) | list }}",
    "placeholder text": "{{ lipsum(n=10 ** 6) }}",
    "sum of lists": "{{ ([[0] * 10 ** 5] * 10 ** 5) | sum(start=[]) | length }}",
    "long list": "{{ ([0] * 10 ** 9) | length }}",
    "big power": "{{ 9 ** 9 ** 9 }}",
    "squares": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "own counter": "{% set _steps = namespace(spend=range) %}"
    + "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


@pytest.mark.parametrize("source", FAILING.values(), ids=FAILING.keys())
def test_a_failing_or_endless_template_is_one_readable_line(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_STEPS", 100_000)
    with pytest.raises(UserError) as caught:
        render(source)
    text = str(caught.value)
    assert text.startswith("the chat template") and "\n" not in text and len(text) < 700
    assert "send the prompt raw (generate --raw, or the completions route)" in text


def test_what_honest_templates_do_with_long_texts_is_no_growth(tmp_path: Path) -> None:
    source = (
        "{{ (messages[0].content.split('</think>')[-1].strip() | replace('a', 'bc') | trim | indent(2)) ~ '\\n' }}"
        "{{ messages[0].content.replace('a', 'b').center(20) }}{{ '%5d|%-8s|{}'.format(1) % (3, 'x') }}"
        "{{ ['a', 1] | join(', ') | center(10) }}{{ {'a': [1, 'ü']} | tojson(indent=2) }}{{ 1700000000 | string }}"
    )
    text = "a<think></think>" + "word " * 300_000
    words = text.split("</think>")[-1].strip()
    expected = (
        words
        + "\n"
        + text.replace("a", "b")
        + "    3|x       |1"
        + "   a, 1   "
        + '{\n  "a": [\n    1,\n    "ü"\n  ]\n}'
    )
    assert ChatTemplate(source).render([{"role": "user", "content": text}]) == expected + "1700000000"


def test_a_conversation_longer_than_any_context_is_refused_before_the_template_sees_it(tmp_path: Path) -> None:
    tokenizer = make.load(make.write_chatml(tmp_path))
    with pytest.raises(UserError, match="the messages have over 8,000,000 characters"):
        tokenizer.encode_chat([{"role": "user", "content": "x" * 50_000_000}])


def test_three_thousand_messages_are_no_endless_loop(tmp_path: Path) -> None:
    tokenizer = make.load(make.write_chatml(tmp_path))
    ids = tokenizer.encode_chat([{"role": "user", "content": "x"}] * 3000)
    assert ids.count(382) == 3001


WRONG = [
    ([], "messages is empty"),
    ("hi", "must be a list"),
    ({"role": "user", "content": "x"}, "must be a list"),
    (["hi"], r"messages\[0\] must be an object"),
    ([{}], r"messages\[0\] needs a role"),
    ([{"role": "user"}, {"content": "x"}], r"messages\[1\] needs a role"),
    ([{"role": 5, "content": "x"}], "needs a role"),
    ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be a text"),
    ([{"role": "user", "content": ["x"]}], "without a type"),
    ([{"role": "user", "content": [{"text": "x"}]}], "without a type"),
    ([{"role": "user", "content": [{"type": "text"}]}], "text is missing"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "'image_url'"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "'input_audio'"),
    ([{"role": "user", "content": "x", "time": object()}], "only JSON values"),
    ([{"role": "user", "content": "x", "calls": functools.reduce(lambda x, _: [x], range(5000), [])}], "levels deep"),
]


@pytest.mark.parametrize(("messages", "complaint"), WRONG, ids=range(len(WRONG)))
def test_messages_of_the_wrong_shape_are_refused_by_name(tmp_path: Path, messages: Any, complaint: str) -> None:
    tokenizer = make.load(make.write_chatml(tmp_path))
    with pytest.raises(UserError, match=complaint):
        tokenizer.encode_chat(messages)


def test_variables_of_any_name_do_no_harm(tmp_path: Path) -> None:
    tokenizer = make.load(make.write_chatml(tmp_path, template="{{ messages[0].content }}{{ bos_token }}{{ _steps }}"))
    names = {"self": 1, "messages": 2, "variables": 3, "_steps": 4, "bos_token": "<b>", "source": 5}
    assert tokenizer.decode(tokenizer.encode_chat(HELLO, **names)).startswith("Hello<b>")


def test_the_sandbox_keeps_the_messages_of_the_caller(tmp_path: Path) -> None:
    source = "{% for m in messages %}{% set m.content = 'changed' %}{% endfor %}"
    tokenizer = make.load(make.write_chatml(tmp_path, template=source))
    messages = [{"role": "user", "content": "Hello", "tool_calls": [{"function": {"arguments": {"a": 1}}}]}]
    before = json.dumps(messages)
    with pytest.raises(UserError):
        tokenizer.encode_chat(messages)
    assert json.dumps(messages) == before
