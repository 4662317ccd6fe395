"""Our server and another engine's, in turn, on the same prompts: `python -m mini_infer.bench.peers --help`.

Installs nothing: what is to be compared is given as a path or a command. Both servers run all the time, and the one
that is not asked is stopped, so that neither costs the other anything; each round asks both, and who comes first
alternates. The client is the load generator's, in this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from statistics import median

import click
import httpx
from msgspec import Struct, to_builtins

from mini_infer.errors import UserError
from mini_infer.load.client import Client, Target
from mini_infer.load.records import Ask, Record
from mini_infer.load.workload import WorkloadOptions, make_workload

OURS = "mini-infer"
COMMANDS = {
    OURS: f"{shlex.quote(sys.executable)} -m mini_infer serve --model {{model}} --port {{port}} --dtype {{dtype}}",
    "vllm": "{path} serve {model} --port {port} --host 127.0.0.1 --dtype {dtype} --max-model-len 4096",
    "llama.cpp": "{path} --model {gguf} --port {port} --host 127.0.0.1 --parallel 16 --ctx-size 16384",
}
READY_S = 300.0


class Round(Struct, frozen=True):
    """What one server did with one set of prompts."""

    server: str
    streams: int
    tokens_per_s: float
    ttft_s: float


class Server:
    """A child process that serves; `resume` and `halt` let it run and stop it, with all its own children."""

    def __init__(self, name: str, command: str, port: int, log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                shlex.split(command), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.target = Target(f"http://127.0.0.1:{port}")

    def wait_ready(self) -> None:
        """Until it lists its model. Raises UserError where it ends before or takes too long."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise UserError(f"{self.name} ended before it served; its words are in {self.log}")
            with suppress(httpx.HTTPError, ValueError, LookupError):
                answer = httpx.get(f"{self.target.root}/v1/models", timeout=5, trust_env=False)
                if answer.status_code == 200:
                    self.target = Target(self.target.url, answer.json()["data"][0]["id"], timeout_s=600)
                    return
            time.sleep(0.5)
        raise UserError(f"{self.name} did not serve within {READY_S:.0f} s; its words are in {self.log}")

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def halt(self) -> None:
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        for number in (signal.SIGCONT, signal.SIGTERM):
            self._signal(number)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@contextmanager
def running(commands: dict[str, str], logs: Path, **values: str) -> Iterator[list[Server]]:
    """The servers, each on a free port and warmed up, all of them stopped; ended in any case."""
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with us
        stack.callback(signal.signal, signal.SIGTERM, before)
        servers = []
        for name, command in commands.items():
            port = free_port()
            server = Server(name, command.format(port=port, **values), port, logs / f"{name}.log")
            stack.callback(server.end)
            server.wait_ready()
            measure(server, prompts(4, "warm-up", 16), 4)
            server.halt()
            servers.append(server)
        yield servers


def prompts(count: int, seed: str, output_tokens: int, words: int = 160) -> list[Ask]:
    """Prompts of that many common words (about 200 tokens), no two alike; answers of exactly `output_tokens`."""
    options = WorkloadOptions(kind="random", input_tokens=words, output_tokens=output_tokens)
    return [conversation.first for conversation in islice(make_workload(options).conversations(seed), count)]


def measure(server: Server, asks: Sequence[Ask], streams: int) -> Round:
    """Ask all of them, `streams` at a time. Raises UserError where one fails."""
    began = time.perf_counter()
    records = asyncio.run(_ask_all(server.target, asks, streams))
    took = time.perf_counter() - began
    for record in records:
        if not record.is_ok:
            raise UserError(f"{server.name} failed a request: {record.cause} {record.detail}")
    ttft = median(record.pieces[0] - record.sent for record in records)
    return Round(server.name, streams, sum(record.tokens for record in records) / took, ttft)


async def _ask_all(target: Target, asks: Sequence[Ask], streams: int) -> list[Record]:
    waiting = iter(asks)
    records: list[Record] = []

    async def stream() -> None:
        async with Client(target) as client:
            for ask in waiting:
                records.append(await client.ask(ask))

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return records


def compare(servers: Sequence[Server], streams: Sequence[int], pairs: int, output_tokens: int) -> list[Round]:
    """Every server on every number of streams, `pairs` times, on the same prompts within a pair and new ones after."""
    rounds = []
    for pair in range(pairs):
        for count in streams:
            asks = prompts(max(count, 2), f"pair {pair}, {count} streams", output_tokens)
            for server in servers if pair % 2 == 0 else reversed(servers):
                server.resume()
                rounds.append(measure(server, asks, count))
                server.halt()
                found = rounds[-1]
                click.echo(f"{found.server}, {count} streams: {found.tokens_per_s:.1f} tok/s", err=True)
    return rounds


def summary(rounds: Sequence[Round]) -> str:
    """A table: for each peer and number of streams both medians, and the median and range of the ratios of pairs."""
    lines = ["| peer | streams | mini-infer tok/s | peer tok/s | ratio (range) | TTFT s |", "|---|---|---|---|---|---|"]
    for peer in dict.fromkeys(found.server for found in rounds if found.server != OURS):
        for streams in dict.fromkeys(found.streams for found in rounds):
            ours, theirs = (
                [found for found in rounds if found.server == name and found.streams == streams]
                for name in (OURS, peer)
            )
            ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(ours, theirs, strict=True)]
            speeds = " | ".join(f"{median(found.tokens_per_s for found in side):.1f}" for side in (ours, theirs))
            first = " / ".join(f"{median(found.ttft_s for found in side):.2f}" for side in (ours, theirs))
            spread = f"{median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})"
            lines.append(f"| {peer} | {streams} | {speeds} | {spread} | {first} |")
    return "\n".join(lines) + "\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@click.command()
@click.option("--model", required=True, help="Folder of the checkpoint.")
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--vllm", metavar="PATH", help="vLLM's executable.")
@click.option("--llama-server", metavar="PATH", help="llama.cpp's server; needs --gguf.")
@click.option("--gguf", default="", metavar="FILE", help="The checkpoint for llama.cpp.")
@click.option(
    "--command",
    "others",
    multiple=True,
    metavar="NAME=COMMAND",
    help="Any other server; {model}, {port} and {dtype} are filled in. Repeatable.",
)
@click.option("--streams", default="1,4,16", show_default=True)
@click.option("--pairs", default=5, show_default=True)
@click.option("--output-tokens", default=48, show_default=True)
@click.option("--logs", type=click.Path(path_type=Path), default=Path("peers-logs"), show_default=True)
@click.option("--json", "as_json", type=click.Path(path_type=Path), help="Every round, as JSON.")
def main(
    model: str,
    dtype: str,
    vllm: str | None,
    llama_server: str | None,
    gguf: str,
    others: tuple[str, ...],
    streams: str,
    pairs: int,
    output_tokens: int,
    logs: Path,
    as_json: Path | None,
) -> None:
    """Start mini-infer's server and others, and compare their speed in alternated pairs."""
    commands = {OURS: COMMANDS[OURS]}
    for name, path in (("vllm", vllm), ("llama.cpp", llama_server)):
        if path:
            commands[name] = COMMANDS[name].replace("{path}", shlex.quote(path))
    commands |= dict(other.split("=", 1) for other in others if "=" in other)
    if len(commands) == 1:
        raise click.UsageError("give at least one of --vllm, --llama-server and --command NAME=COMMAND")
    if llama_server and not gguf:
        raise click.UsageError("--llama-server needs --gguf FILE")
    values = {"model": shlex.quote(model), "dtype": dtype, "gguf": shlex.quote(gguf)}
    try:
        with running(commands, logs, **values) as servers:
            rounds = compare(servers, [int(count) for count in streams.split(",")], pairs, output_tokens)
    except UserError as error:
        raise click.ClickException(str(error)) from error
    click.echo(summary(rounds), nl=False)
    if as_json is not None:
        as_json.write_text(json.dumps(to_builtins(rounds)) + "\n")


if __name__ == "__main__":
    main()
