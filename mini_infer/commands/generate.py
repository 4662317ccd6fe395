"""`mini-infer generate`: one prompt, one answer."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_infer.build import build_engine
from mini_infer.commands.interrupt import INTERRUPTED, exit_at_once, on_interrupt
from mini_infer.commands.terminal import Waiting, check_output, note, write
from mini_infer.config import EngineConfig
from mini_infer.errors import UserError
from mini_infer.observe.trace_file import FileSink, check_target
from mini_infer.results import GenerationResult
from mini_infer.sampling.params import SamplingParams
from mini_infer.speculative.summary import summarize

if TYPE_CHECKING:
    from mini_infer.engine import InferenceEngine
    from mini_infer.llm import Stream
    from mini_infer.speculative.proposer import Proposer

LONGEST_INPUT = 1 << 25
"""Bytes of standard input that are read; the input may be endless."""

LONG_READ_S = 10.0
"""Seconds without a word of the answer after which a log, too, is told how far the prompt is read."""


def read_prompt(argument: str, *, raw: bool) -> str:
    """The prompt itself, or standard input where it is a lone dash.

    The line end that closes the input of a chat message is no part of it; with `raw` everything is.
    Raises UserError for what is not UTF-8, and for an empty prompt.
    """
    if argument == "-":
        prompt = _stdin()
        prompt = prompt if raw else prompt.removesuffix("\n").removesuffix("\r")
    else:
        prompt = argument
    if not (prompt if raw else prompt.strip()):
        raise UserError("the prompt is empty: give a text, or - to read it from standard input")
    return prompt


def _stdin() -> str:
    if sys.stdin is None:
        raise UserError("standard input is closed: give the prompt as an argument")
    if sys.stdin.isatty():
        note("mini-infer: reading the prompt from the keyboard; end it with Ctrl+D on a line of its own")
    data = sys.stdin.buffer.read(LONGEST_INPUT + 1)
    if len(data) > LONGEST_INPUT:
        raise UserError(f"standard input is longer than {LONGEST_INPUT} bytes: no context holds that, shorten it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"standard input is not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start}): "
            "convert it, for instance with iconv -t UTF-8"
        ) from None


def run(
    prompt: str, options: EngineConfig, params: SamplingParams, *, raw: bool, as_json: bool, record: Path | None
) -> int:
    """Streams the answer, or prints it as one JSON object, and returns the exit code."""
    check_output()
    if record is not None:
        check_target(record)
    with on_interrupt(exit_at_once):  # nothing to save yet
        with Waiting("loading torch"):
            import torch  # noqa: F401  (the one slow import)
        engine = build_engine(options, progress=True)
        from mini_infer.llm import LLM  # its tokenizer takes its time

        llm = LLM(engine=engine)
        ids = llm.encode(prompt) if raw else llm.encode_chat(prompt)
        engine.limits.check(ids, params.with_defaults(engine.config.generation))  # before a recording is begun
    with _recording(engine, record) as sink, _said_once():
        result = _answer(engine, llm.stream(ids, params, raw=True), len(ids), show=not as_json)
    shown = json.dumps(_object(result, engine.proposer)) if as_json else ""  # ASCII: one line to all readers of lines
    write(shown + "\n")
    if result.error is not None:
        note(f"mini-infer: {result.error}")
        return 1
    if result.finish_reason == "length" and not as_json:
        note(f"mini-infer: {_cut(result, params)}")
    if result.finish_reason == "abort":
        return INTERRUPTED
    return 1 if sink is not None and sink.error is not None else 0  # of which the log has told


def _answer(engine: InferenceEngine, stream: Stream, prompt_tokens: int, *, show: bool) -> GenerationResult:
    """Reads the answer to its end, and shows it as it comes. Ctrl+C aborts it; what there is by then is the result."""
    result: GenerationResult | None = None

    def read() -> None:
        nonlocal result
        for chunk in stream:
            result = chunk.result
            if show and chunk.text:
                waiting.stop()
                write(chunk.text)

    def progress() -> str:
        seq = engine.scheduler.sequences.get(stream.request_id)
        if seq is not None and seq.num_computed < prompt_tokens:
            return f"reading the prompt: {seq.num_computed:,} of {prompt_tokens:,} tokens"
        return f"answering: {seq.num_tokens - prompt_tokens:,} tokens" if seq is not None else "answering"

    with Waiting(progress, plain_after_s=LONG_READ_S if show else None) as waiting:
        try:
            read()
        except KeyboardInterrupt:
            stream.abort()
            read()
    if result is None:  # interrupted between the last chunk and its reader
        raise KeyboardInterrupt
    return result


def _cut(result: GenerationResult, params: SamplingParams) -> str:
    """Why an answer ended before its end."""
    tokens = result.usage.completion_tokens
    if tokens == params.max_tokens:
        return f"the answer was cut at --max-tokens {tokens}"
    return f"the answer was cut after {tokens} tokens: the context or the KV cache is full"


@contextmanager
def _said_once() -> Iterator[None]:
    """While open, the log is not told of a request that failed: there is but one, and its error is its result."""

    def keep(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("request %s ended")

    log = logging.getLogger("mini_infer")
    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)


@contextmanager
def _recording(engine: InferenceEngine, file: Path | None) -> Iterator[FileSink | None]:
    """While open, every step of the engine goes to `file`."""
    if file is None:
        yield None
        return
    import torch

    sink = FileSink(file, asdict(engine.options), {"torch": str(torch.__version__)})
    engine.attach(sink)
    try:
        yield sink
    finally:
        engine.detach(sink)
        sink.close()


def _object(result: GenerationResult, proposer: Proposer | None) -> dict[str, Any]:
    """What --json prints."""
    usage = result.usage
    timings = {name: value for name, value in asdict(result.timings).items() if name != "queued_s" or value is not None}
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "preemptions": usage.preemptions,
            "recomputed_tokens": usage.recomputed_tokens,
        },
        "timings": timings,
        "speculation": asdict(summarize(usage, result.timings, proposer)),
    }
