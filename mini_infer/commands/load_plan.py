"""From the options of `mini-infer load` to what it is to do: levels, objectives, workload. Raises UserError."""

from __future__ import annotations

from typing import Any

from mini_infer.config import option_name
from mini_infer.errors import UserError
from mini_infer.load.arrivals import Level, sped_up
from mini_infer.load.campaign import Plan
from mini_infer.load.dataset import read_arrivals
from mini_infer.load.figures import Slo
from mini_infer.load.workload import EXACT, WorkloadOptions


def check_url(url: str) -> None:
    """Raises UserError."""
    if not url.startswith(("http://", "https://")) or not url.split("://", 1)[1].strip("/"):
        raise UserError(f"--url is {url!r}: it must start with http:// or https://, as in http://127.0.0.1:8000")


def words_of(name: str, value: Any) -> list[str]:
    """An engine option as `serve` reads it."""
    option = option_name(name)
    if isinstance(value, bool):
        return [option if value else f"--no-{option.removeprefix('--')}"]
    return [] if value is None else [option, str(value)]


def plan(values: dict[str, Any]) -> Plan:
    """The run that was asked for. Raises UserError."""
    if values["find_max"] and not values["slo"]:
        raise UserError("--find-max needs --slo, for instance --slo ttft=500,tpot=50")
    return Plan(
        levels=_levels(values),
        requests=values["requests"],
        duration_s=values["duration"],
        warmup=values["warmup"],
        repeats=values["repeats"],
        slo=_slo(values["slo"]),
        check=values["check"],
        cancel_rate=values["cancel_rate"],
        find_max=values["find_max"],
        attainment=values["attainment"],
        seed=values["seed"],
    )


def _levels(values: dict[str, Any]) -> tuple[Level, ...]:
    given = [option_name(name) for name in ("concurrency", "rate", "replay") if values[name] is not None]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} are two kinds of load: give one of them")
    cap, burstiness = values["max_concurrency"], values["burstiness"]
    if cap is not None and values["rate"] is None and values["replay"] is None:
        raise UserError("--max-concurrency is for --rate and --replay; --concurrency alone says how many run at once")
    if values["replay"] is not None:
        if values["find_max"]:
            raise UserError("--find-max has nothing to search in a replay: use --concurrency or --rate")
        return (Level(times=sped_up(read_arrivals(values["replay"]), values["replay_speed"]), cap=cap),)
    if values["rate"] is not None:
        rates = _numbers("--rate", values["rate"], float)
        return tuple(Level(rate=rate, burstiness=burstiness, cap=cap) for rate in rates)
    first = "1" if values["find_max"] else "1,2,4,8"
    counts = _numbers("--concurrency", first if values["concurrency"] is None else values["concurrency"], int)
    return tuple(Level(concurrency=count) for count in counts)


def _numbers(option: str, text: str, kind: Any) -> list[Any]:
    try:
        found = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise UserError(f"{option} is {text!r}: give numbers with commas between, as in 1,4,16")
    return found


def _slo(text: str | None) -> Slo:
    limits: dict[str, float] = {}
    for part in (text or "").split(","):
        name, _, value = part.strip().partition("=")
        if not name:
            continue
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = -1.0
        if name not in ("ttft", "tpot", "e2e") or not limits[name] > 0:
            raise UserError(f"--slo has {part.strip()!r}: give ttft, tpot or e2e with milliseconds, as in ttft=500")
    return Slo(**limits)


def workload(values: dict[str, Any]) -> WorkloadOptions:
    """What is to be asked. Raises UserError."""
    if (values["workload"] == "file") != (values["file"] is not None):
        raise UserError("--workload file and --file FILE go together: give both or neither")
    names = "input_tokens output_tokens prefix_tokens prefixes turns temperature ignore_eos".split()
    return WorkloadOptions(kind=values["workload"], **{name: values[name] for name in names})


def settings(values: dict[str, Any], knobs: dict[str, Any], given: set[str]) -> dict[str, Any]:
    """What the report says of how it was made."""
    names = "workload output_tokens requests duration temperature cancel_rate".split()
    if values["workload"] in EXACT:
        names.insert(1, "input_tokens")
    if values["workload"] == "shared-prefix":
        names[2:2] = ["prefix_tokens", "prefixes"]
    if values["workload"] == "multi-turn":
        names.insert(1, "turns")
    shown = {name: values[name] for name in names}
    if not shown["cancel_rate"]:
        shown["cancel_rate"] = None
    return shown | {name: knobs[name] for name in sorted(given)}
