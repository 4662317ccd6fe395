"""`mini-infer load` as it is called: exit codes, reports, and one line for everything that goes wrong."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mini_infer import cli
from tests.load.fake_server import FakeOpenAI, in_thread


@dataclass
class Done:
    code: int
    out: str
    err: str
    report: dict[str, Any] | None = None

    @property
    def level(self) -> dict[str, Any]:
        assert self.report is not None
        return self.report["levels"][-1]  # type: ignore[no-any-return]


@pytest.fixture
def load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command; with `url`, against that server and with a JSON report."""

    def run(*args: object, url: str | None = None) -> Done:
        path = tmp_path / "report.json"
        path.unlink(missing_ok=True)
        given = ["load", *map(str, args)]
        if url is not None:
            given += ["--url", url, "--json", str(path), "--seed", "1"]
        with pytest.raises(SystemExit) as end:
            cli.main(given)
        shown = capsys.readouterr()
        made = json.loads(path.read_text()) if path.exists() else None
        return Done(int(end.value.code or 0), shown.out, shown.err, made)

    return run


def test_a_sweep_measures_every_level_and_writes_every_report(load: Any, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"r.{kind}" for kind in ("csv", "markdown", "html")}
    outputs = [word for kind, path in files.items() for word in (f"--{kind}", path)]
    with in_thread(FakeOpenAI(drafted=4)) as server:
        done = load("--concurrency", "1,4", "--requests", 12, "--output-tokens", 5, *outputs, url=server.url)
    assert done.code == 0, done.err
    assert [level["level"] for level in done.report["levels"]] == ["1", "4"]
    for level in done.report["levels"]:
        figures = level["figures"]
        assert (figures["ok"], figures["output_tokens"], figures["failed"]) == (12, 60, {})
        assert figures["acceptance"] == 0.5 and figures["cached_share"] == 0.5
        assert level["server"]["agrees"] is True and level["server"]["generated_tokens"] == 60
        assert len(level["samples"]) == 12
    assert done.report["server"] == {"engine": "fake", "version": "1"}
    assert done.out == files["markdown"].read_text()
    assert files["csv"].read_text().count("\n") == 3
    assert "<svg" in files["html"].read_text()
    assert "seed 1" in done.err


def test_a_report_on_standard_output_is_alone_there(load: Any) -> None:
    with in_thread(FakeOpenAI()) as server:
        args = ("--url", server.url + "/v1", "--concurrency", 1, "--requests", 2, "--warmup", 0)
        done = load(*args, "--json", "-")
        assert json.loads(done.out)["levels"][0]["figures"]["ok"] == 2
        assert load(*args, "--json", "-", "--csv", "-").code == 2


def test_warm_up_is_asked_and_not_counted(load: Any) -> None:
    with in_thread(FakeOpenAI()) as server:
        done = load("--concurrency", 2, "--requests", 5, "--warmup", 3, "--repeats", 2, url=server.url)
        assert len(server.asked()) == 16
    assert [level["figures"]["ok"] for level in done.report["levels"]] == [5, 5]
    bodies = [str(r.body["messages"]) for r in server.asked()]
    assert len(set(bodies)) > 12  # fresh prompts for each


def test_random_prompts_are_of_the_servers_own_tokens(load: Any) -> None:
    args = ("--concurrency", 1, "--requests", 3, "--workload", "shared-prefix", "--prefix-tokens", 9)
    with in_thread(FakeOpenAI()) as server:
        done = load(*args, "--input-tokens", 7, url=server.url)
        prompts = [r.body["prompt"] for r in server.asked("/completions")]
    assert done.code == 0
    assert {len(p) for p in prompts} == {16}
    assert all(300 <= token < 400 for p in prompts for token in p)
    with in_thread(FakeOpenAI(tokenizer=False)) as server:
        done = load(*args, "--input-tokens", 7, url=server.url)
    assert done.code == 0 and "no /tokenize" in done.out


def test_files_and_recorded_times_are_replayed(load: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f'{{"prompt": "p{i}", "timestamp": {i / 100}, "max_tokens": {i + 1}}}\n' for i in range(4)))
    with in_thread(FakeOpenAI()) as server:
        args = ("--replay", path, "--replay-speed", 2, "--workload", "file", "--file", path, "--warmup", 0)
        done = load(*args, url=server.url)
    assert done.code == 0
    assert [s["scheduled_ms"] for s in done.level["samples"]] == pytest.approx([0, 5, 10, 15], abs=0.01)
    assert [s["tokens"] for s in done.level["samples"]] == [1, 2, 3, 4]
    assert done.level["level"] == "replay"


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_B05_a_closed_port_gives_an_empty_report_and_one_line(load: Any) -> None:
    with in_thread(FakeOpenAI()) as server:
        url = server.url
    done = load("--concurrency", "1,4", "--requests", 3, url=url)
    assert done.code == 1
    last = done.err.strip().split("\n")[-1]
    assert last.startswith("mini-infer: all 3 requests of level 1 failed: refused (")
    assert len(done.report["levels"]) == 1
    assert done.level["figures"]["ttft_ms"]["p50"] is None
    assert done.level["figures"]["output_tok_s"] is None


@pytest.mark.parametrize("status", ["401 Unauthorized", "429 Too Many Requests", "500 Oh"])
def test_B05_a_server_that_refuses_all_is_said_with_its_words(load: Any, status: str) -> None:
    with in_thread(FakeOpenAI(fail_every=1, fail_with=status)) as server:
        done = load("--concurrency", 2, "--requests", 4, url=server.url)
    assert done.code == 1
    assert f"all 4 requests of level 2 failed: HTTP {status[:3]} (as ordered)" in done.err
    assert done.level["figures"]["failed"] == {f"HTTP {status[:3]}": 4}


def test_B04_some_failures_are_flagged_and_kept_out(load: Any) -> None:
    with in_thread(FakeOpenAI(fail_every=2)) as server:
        done = load("--concurrency", 2, "--requests", 10, "--warmup", 0, url=server.url)
    assert done.code == 0
    assert (done.level["figures"]["ok"], done.level["figures"]["failed"]) == (5, {"HTTP 500": 5})
    assert done.level["figures"]["e2e_ms"]["count"] == 5
    assert "5 requests failed (5 × HTTP 500)" in done.out
    assert done.level["server"]["agrees"] is None


def test_B07_a_server_without_usage_is_measured_by_pieces_and_it_is_said(load: Any) -> None:
    with in_thread(FakeOpenAI(usage=False)) as server:
        done = load("--concurrency", 1, "--requests", 3, "--output-tokens", 5, url=server.url)
    assert (done.code, done.level["figures"]["output_tokens"]) == (0, 15)
    assert "3 answers came without usage" in done.out


def test_B14_a_wall_clock_that_jumps_moves_no_duration(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real, jumps = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * (-1) ** next(jumps) * next(jumps))
    began = time.perf_counter()
    with in_thread(FakeOpenAI()) as server:
        done = load("--concurrency", 2, "--requests", 6, url=server.url)
    spent = 1e3 * (time.perf_counter() - began)
    figures = done.level["figures"]
    assert 0 < figures["window_s"] <= spent / 1e3
    for name in ("ttft_ms", "e2e_ms"):
        assert 0 <= figures[name]["p50"] <= figures[name]["max"] <= spent


def test_sums_that_differ_from_the_servers_are_said(load: Any) -> None:
    with in_thread(FakeOpenAI(miscount=1)) as server:
        done = load("--concurrency", 1, "--requests", 3, "--output-tokens", 5, url=server.url)
    assert done.level["server"]["agrees"] is False
    assert "the server counted 18 tokens, its answers 15" in done.out


def test_max_time_caps_the_whole_run(load: Any) -> None:
    with in_thread(FakeOpenAI(hold_every=1)) as server:
        done = load("--concurrency", "1,2", "--warmup", 0, "--max-time", 0.3, url=server.url)
    assert done.report["stopped"] == "--max-time 0.3 s was over"
    assert "Ended early" in done.out
    assert all(level["figures"]["ok"] == 0 for level in done.report["levels"])


# --- check, cancellations, limits -----------------------------------------------------------------------------------

CHECK = ("--concurrency", "1,4", "--requests", 50, "--warmup", 0, "--output-tokens", 6, "--check")


def test_a_check_of_a_sound_server_finds_nothing(load: Any) -> None:
    with in_thread(FakeOpenAI()) as server:
        done = load(*CHECK, url=server.url)
    assert done.code == 0, done.err
    assert [(c["level"], c["compared"], c["equal"]) for c in done.report["check"]["levels"]] == [
        ("1", 50, 50),
        ("4", 50, 50),
    ]
    asked = [r.body for r in server.asked() if r.body.get("logprobs")]
    assert len(asked) == 150
    assert all(body["top_logprobs"] == 5 and body["temperature"] == 0 for body in asked)
    assert [level["figures"]["ok"] for level in done.report["levels"]] == [50, 50]


def test_a_server_that_corrupts_one_answer_in_50_is_found_out(load: Any) -> None:
    with in_thread(FakeOpenAI(corrupt_every=50)) as server:
        done = load(*CHECK, url=server.url)
    assert done.code == 1
    assert "the check found" in done.err and "wrong answers (first: prompt " in done.err
    wrong = [d for d in done.report["check"]["divergences"] if d["kind"] == "wrong"]
    assert wrong and all(d["token"] == 3 for d in wrong)


def test_ties_are_counted_and_are_no_fault(load: Any) -> None:
    with in_thread(FakeOpenAI(corrupt_every=50, corrupt_gap=0.1)) as server:
        done = load(*CHECK, url=server.url)
    assert done.code == 0
    assert sum(c["ties"] for c in done.report["check"]["levels"]) >= 1
    assert all(d["gap"] == pytest.approx(0.1) for d in done.report["check"]["divergences"])


def test_a_check_that_could_not_compare_does_not_pass(load: Any) -> None:
    with in_thread(FakeOpenAI(fail_every=60)) as server:
        done = load(*CHECK, url=server.url)
    assert done.code == 1
    assert "could not compare" in done.err


def test_conversations_are_checked_turn_by_turn(load: Any) -> None:
    with in_thread(FakeOpenAI()) as server:
        args = ("--workload", "multi-turn", "--turns", 3, "--concurrency", 4, "--requests", 12, "--check")
        done = load(*args, url=server.url)
    assert done.code == 0, done.err
    assert done.report["check"]["prompts"] == 12
    assert done.report["check"]["levels"][0]["equal"] == 12


def test_after_cancellations_a_leak_is_found(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_infer.load.scrape.SETTLE_S", 0.2)
    args = ("--concurrency", 4, "--requests", 30, "--cancel-rate", 0.5, "--warmup", 0)
    with in_thread(FakeOpenAI()) as server:
        done = load(*args, url=server.url)
    assert done.code == 0, done.err
    assert done.level["figures"]["cancelled"] >= 5
    assert done.level["server"]["idle_checked"] is True
    with in_thread(FakeOpenAI(leak=2)) as server:
        done = load(*args, url=server.url)
    assert done.code == 1
    assert "left the server with running 2, waiting" not in done.err
    assert "left the server with running 2" in done.err


def test_the_highest_level_that_keeps_the_objective_is_found(load: Any) -> None:
    """The server answers up to five at once, and refuses the sixth."""

    class Small(FakeOpenAI):
        async def __call__(self, request: Any, out: Any) -> None:
            if request.path.endswith("/chat/completions") and self.running >= 5:
                await out.json({"error": {"message": "full"}}, "429 Too Many Requests")
                return
            await super().__call__(request, out)

    with in_thread(Small(ttft_s=0.05)) as server:
        args = ("--find-max", "--slo", "ttft=60000", "--attainment", 1, "--requests", 24, "--warmup", 0)
        done = load(*args, "--output-tokens", 2, url=server.url)
    assert done.report["maximum"]["kept"] == "5", done.out
    assert done.report["maximum"]["broken"] == "6"
    assert "**Limit: 5** kept 100% of the answers within TTFT 60000 ms; 6 broke it." in done.out


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (("--concurrency", "x"), "--concurrency"),
        (("--concurrency", "0"), "--concurrency"),
        (("--concurrency", "1", "--rate", "2"), "--rate"),
        (("--rate", "-1"), "--rate"),
        (("--slo", "ttft"), "--slo"),
        (("--slo", "speed=9"), "--slo"),
        (("--find-max",), "--slo"),
        (("--url", "ftp://x"), "--url"),
        (("--url", "http://x", "--draft", "ngram"), "--draft"),
        (("--workload", "file"), "--file"),
        (("--file", "x"), "--file"),
        (("--replay", "nowhere.txt"), "nowhere.txt"),
        (("--json", "no/such/folder/x.json"), "no/such/folder"),
        (("--max-concurrency", "4"), "--max-concurrency"),
        (("--kv-blocks", "1"), "--kv-blocks"),
        (("compare", "nowhere.json", "nowhere.json"), "nowhere.json"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(load: Any, args: tuple[str, ...], names: str) -> None:
    done = load(*args)
    assert done.code == 2
    assert names in done.err
    assert done.err.strip().count("\n") == 0


def test_compare_tells_by_its_exit_code(load: Any, tmp_path: Path) -> None:
    from mini_infer.load.report import to_json
    from tests.load.test_report import level, report

    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(to_json(report(level(4))))
    b.write_text(to_json(report(level(4, 1.5))))
    assert load("compare", a, a).code == 0
    done = load("compare", a, b)
    assert done.code == 1
    assert "B is worse in: TTFT p50 ms at 4" in done.out
    assert load("compare", a, b, "--threshold", 80).code == 0
    assert load("compare", b, a).code == 0
