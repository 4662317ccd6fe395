"""The bench measures what it says, on a tiny model; no figure is asserted, for no machine promises one."""

from __future__ import annotations

import json

import pytest
import torch

from mini_infer.bench import cases
from mini_infer.bench.drive import Clock, Driver, model_of
from mini_infer.bench.figures import Figure, Ratio
from mini_infer.bench.limits import Limits, linears
from mini_infer.bench.report import Report, table, to_json
from mini_infer.cli import main
from mini_infer.commands.bench import CASES
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import tiny_engine


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.setattr(cases, "PROMPT", 40)
    monkeypatch.setattr(cases, "CONTEXTS", (20, 30))
    monkeypatch.setattr(cases, "BATCHES", (1, 2))
    monkeypatch.setattr(cases, "MIXED", (30, 5))
    return Driver(tiny_engine(num_blocks=64, dtype=torch.float32))


def figures(driver, name):
    limits = Limits(model_of(driver.engine), read_bytes=2**16)
    return {figure.name: figure for figure in cases.BY_NAME[name](driver, limits)}


def test_every_case_can_be_named():
    assert tuple(cases.BY_NAME) == CASES


@pytest.mark.parametrize("name", CASES)
def test_a_case_holds_figures_against_limits_and_leaves_the_engine_idle(driver, name):
    found = figures(driver, name)
    assert found and all(figure.value >= 0 for figure in found.values())
    ratios = [ratio for figure in found.values() for ratio in figure.ratios]
    assert ratios and all(ratio.before > 0 and ratio.after > 0 for ratio in ratios)
    assert not driver.engine.has_work
    assert "forward" not in vars(model_of(driver.engine)), "a clock was left behind"


def test_decode_covers_batches_contexts_and_the_mix(driver):
    found = figures(driver, "decode")
    assert [name.removeprefix("decode, ") for name in found] == [
        "batch 1, context 20",
        "batch 2, context 20",
        "batch 1, context 30",
        "batch 2, context 30",
        "batch 2, one of 2,000, the others of 50",
    ]
    assert [ratio.what for ratio in found["decode, batch 2, context 20"].ratios] == [
        "bare products",
        "read bandwidth",
        "batch 1",
    ]


def test_what_does_not_fit_is_left_out(driver, monkeypatch):
    monkeypatch.setattr(cases, "CONTEXTS", (20, 5000))
    assert not any("5,000" in name for name in figures(driver, "decode"))


def test_the_prefix_is_really_cached(driver):
    computed = []
    run = driver.engine.runner.run
    driver.engine.runner.run = lambda batch: computed.append(len(batch.token_ids)) or run(batch)
    figures(driver, "ttft")
    assert max(computed[-5:]) == 16, "the last requests read more than their own 16 tokens"


def test_steps_add_up(driver):
    steps = driver.decode([driver.prompt(20, 1), driver.prompt(20, 2)], 6)
    assert (steps.count, steps.tokens) == (6, 12)
    assert 0 < steps.own < steps.total and 0 < steps.model < steps.total
    assert driver.prompt(20, 1) == driver.prompt(20, 1) != driver.prompt(20, 2)


def test_a_clock_counts_calls_within_calls_once():
    clock = Clock()
    inner = clock.around(lambda: sum(range(20_000)))
    outer = clock.around(lambda: [inner() for _ in range(20)])
    alone = Clock()
    alone.around(outer)()
    assert clock.take() <= alone.take() and clock.take() == 0.0


def test_the_bare_products_are_all_of_the_model(monkeypatch):
    model = model_of(tiny_engine(dtype=torch.float32))
    rows: dict[int, int] = {}
    for module in linears(model):
        monkeypatch.setattr(module, "forward", lambda x, module=module: rows.update({id(module): len(x)}))
    limits = Limits(model, read_bytes=2**16)
    assert limits.products(5, 2) >= 0
    assert len(rows) == 4 * model.config.num_layers + 1
    assert rows.pop(id(model.lm_head)) == 2 and set(rows.values()) == {5}
    assert limits.weight_bytes == sum(
        t.nbytes for n, t in model.checkpoint_parameters().items() if "proj" in n or "head" in n
    ) + (model.embed_tokens.nbytes if model.config.tie_word_embeddings else 0)


def test_ratios_and_the_report():
    slow, fast = Ratio("bare products", "time", 20.0, 9.0, 11.0, "ms"), Ratio("reads", "rate", 30.0, 40.0, 40.0, "GB/s")
    assert (slow.limit, slow.fraction, fast.fraction) == (10.0, 0.5, 0.75)
    figure = Figure("decode", 50.0, "tok/s", 3, (slow, fast))
    report = Report(
        version="0",
        torch="2",
        machine="m",
        threads=2,
        model="tiny",
        dtype="float32",
        weight_bytes=1,
        max_batch_tokens=256,
        max_chunk=128,
        figures=(figure,),
    )
    (read,) = json.loads(to_json(report))["figures"]
    assert [(r["ours"], r["before"], r["after"], r["fraction"]) for r in read["ratios"]] == [
        (20.0, 9.0, 11.0, 0.5),
        (30.0, 40.0, 40.0, 0.75),
    ]
    assert "50% outside" in table([figure]) and "75.0%" in table([figure])


def run(capsys, *args):
    with pytest.raises(SystemExit) as end:
        main(["bench", *args])
    return end.value.code, capsys.readouterr()


def test_the_command(tmp_path, capsys):
    folder = write_checkpoint(tmp_path / "model", "qwen2")
    code, out = run(capsys, "--model", str(folder), "--case", "speculation", "--json", "-")
    assert code == 0 and out.out.count("\n") == 1
    said = json.loads(out.out)
    assert said["figures"][0]["name"] == "speculation by ngram"
    code, out = run(capsys, "--model", str(folder), "--case", "speculation", "--json", str(tmp_path / "f.json"))
    assert code == 0 and "no drafts" in out.out
    assert json.loads((tmp_path / "f.json").read_text())["model"] == said["model"]
    code, out = run(capsys, "--model", str(folder), "--json", str(tmp_path / "none" / "f.json"))
    assert code == 2 and "cannot be written" in out.err
