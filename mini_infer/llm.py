"""An engine for a script or a notebook: ask, and get the answer.

    >>> from mini_infer import LLM, SamplingParams
    >>> llm = LLM("Qwen/Qwen2.5-0.5B-Instruct")                           # doctest: +SKIP
    >>> llm.chat("Name a colour.", SamplingParams(max_tokens=20)).text    # doctest: +SKIP
    'Blue.'

It steps the engine in the caller's own thread, so nothing runs between calls. Several threads may ask at once: they
take turns at the steps, and each step carries all of them. For asyncio callers see `EngineService`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, overload

from mini_infer.build import build_engine
from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.errors import UserError
from mini_infer.observe.events import StepReport
from mini_infer.progress import bar
from mini_infer.results import Chunk, Collector, GenerationResult, by_request
from mini_infer.sampling.params import SamplingParams
from mini_infer.text.tokenizer import Tokenizer

Messages = str | Sequence[Mapping[str, Any]]
"""A conversation as OpenAI writes it ([{"role": "user", "content": "…"}, …]), or one user message."""


class LLM:
    """One model with its tokenizer and engine.

    Args:
        model: a folder, or `owner/name` on the Hugging Face hub; wins over `options.model`.
        options: engine knobs.
        progress: show progress bars on stderr while loading and in `generate`.
        engine: an engine that is already built, with its tokenizer, in place of both.

    Raises:
        UserError: one line that names what is wrong and the remedy.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        options: EngineConfig | None = None,
        *,
        progress: bool = False,
        engine: InferenceEngine | None = None,
    ) -> None:
        if engine is None:
            options = options or EngineConfig()
            engine = build_engine(options if model is None else replace(options, model=str(model)), progress=progress)
        if engine.tokenizer is None:
            raise ValueError("LLM needs an engine with a tokenizer")
        self.engine = engine
        self.tokenizer: Tokenizer = engine.tokenizer
        self._progress = progress
        self._open: dict[str, tuple[Collector, deque[Chunk]]] = {}
        self._lock = Lock()  # whoever holds it may touch the engine and the chunks
        self._dropped: deque[str] = deque()  # to be ended by the next who holds it

    # --- prompts ----------------------------------------------------------------------------------------------------

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a raw prompt as it stands; control tokens spelled out in it count."""
        return self.tokenizer.encode(prompt, allow_special=True)

    def encode_chat(self, messages: Messages, **template_variables: Any) -> list[int]:
        """Token ids of a conversation in the checkpoint's chat template, ready for the answer."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.tokenizer.encode_chat(messages, **template_variables)

    # --- answers ----------------------------------------------------------------------------------------------------

    def chat(self, messages: Messages, params: SamplingParams | None = None) -> GenerationResult:
        """The answer to a conversation.

        >>> llm.chat("Hello", SamplingParams(temperature=0, max_tokens=8)).finish_reason in ("stop", "length")
        True
        """
        return self._all([self.encode_chat(messages)], params)[0]

    @overload
    def generate(self, prompts: str | list[int], params: SamplingParams | None = None) -> GenerationResult: ...

    @overload
    def generate(
        self, prompts: list[str] | list[list[int]], params: SamplingParams | None = None
    ) -> list[GenerationResult]: ...

    def generate(self, prompts: Any, params: SamplingParams | None = None) -> Any:
        """Continue raw prompts (texts, or lists of token ids), all at once: one result, or a list in the same order.

        >>> [len(r.token_ids) for r in llm.generate(["one", "two"], SamplingParams(max_tokens=3, ignore_eos=True))]
        [3, 3]
        """
        if not isinstance(prompts, Sequence):
            raise UserError(f"prompts must be a text, token ids or a list of either, not {type(prompts).__name__}")
        if isinstance(prompts, str) or (prompts and all(isinstance(p, int | float) for p in prompts)):
            return self._all([self._ids(prompts)], params)[0]
        return self._all([self._ids(p) for p in prompts], params)

    def stream(
        self, prompt: Messages | Sequence[int], params: SamplingParams | None = None, *, raw: bool = False
    ) -> Stream:
        """The answer piece by piece; the last chunk carries the result. Closing or dropping it aborts the request.

        `raw` continues the prompt as it stands, without the chat template.

        >>> "".join(chunk.text for chunk in llm.stream("Hello", SamplingParams(temperature=0, max_tokens=8))) != ""
        True
        """
        ids = self._ids(prompt) if raw else self.encode_chat(prompt)  # type: ignore[arg-type]
        return self._submit(ids, params)

    def _ids(self, prompt: Any) -> list[int]:
        return self.encode(prompt) if isinstance(prompt, str) else prompt  # which the engine checks and copies

    def _submit(self, prompt: list[int], params: SamplingParams | None) -> Stream:
        params = params or SamplingParams()
        with self._lock:
            self._end_dropped()
            request_id = self.engine.add_request(prompt, params)
            stream = Stream(self, request_id)
            self._open[request_id] = (Collector(request_id, params.n), stream.chunks)
        return stream

    def _step(self) -> None:
        """One step; its outputs go to whoever asked for them, also if that is another iterator."""
        self._end_dropped()
        report = self.engine.step()
        if not report.outputs and not self.engine.has_work:
            raise RuntimeError("the engine is idle, but not all answers came: somebody else took its reports")
        self._deliver(report)

    def _deliver(self, report: StepReport) -> None:
        for request_id, outputs in by_request(report).items():
            if request_id in self._open:
                collector, chunks = self._open[request_id]
                chunks.extend(collector.add(output) for output in outputs)
                if chunks[-1].result is not None:
                    del self._open[request_id]

    def _next(self, stream: Stream) -> Chunk | None:
        """The next chunk of an answer, stepping as long as there is none; None after the last."""
        while True:
            with self._lock:  # one step at a time: another thread's step may bring the chunk too
                if stream.chunks:
                    return stream.chunks.popleft()
                if stream.request_id not in self._open:
                    return None
                self._step()

    def _end(self, request_id: str) -> None:
        """Abort a request unless it has ended; its last chunk is delivered."""
        with self._lock:
            self._abort(request_id)

    def _drop(self, request_id: str) -> None:
        """`_end` for a stream that nobody holds. The collector of garbage may call this in the middle of a step."""
        self._dropped.append(request_id)
        if self._lock.acquire(blocking=False):
            try:
                self._end_dropped()
            finally:
                self._lock.release()

    def _end_dropped(self) -> None:
        while self._dropped:
            self._abort(self._dropped.popleft())

    def _abort(self, request_id: str) -> None:
        if request_id in self._open:
            if self.engine.abort(request_id) and (report := self.engine.flush()) is not None:
                self._deliver(report)
            self._open.pop(request_id, None)

    def _all(self, prompts: list[list[int]], params: SamplingParams | None) -> list[GenerationResult]:
        """All answers, in the order of the prompts. If a prompt is refused, or on Ctrl+C, none is left behind."""
        streams: list[Stream] = []
        try:
            for prompt in prompts:
                streams.append(self._submit(prompt, params))
            results: dict[str, GenerationResult] = {}
            with bar("answering", show=self._progress and len(streams) > 1) as advance:
                while len(results) < len(streams):
                    with self._lock:
                        if any(stream.request_id in self._open for stream in streams):
                            self._step()
                        for stream in streams:
                            if stream.chunks and (result := stream.chunks[-1].result) is not None:
                                results[stream.request_id] = result
                            stream.chunks.clear()
                    advance(len(results), len(streams))
            return [results[stream.request_id] for stream in streams]
        finally:
            for stream in streams:
                stream.close()


class Stream(Iterator[Chunk]):
    """The answer to one request, chunk by chunk, made as it is read.

    Closing or dropping it aborts the request. After `abort`, or Ctrl+C while it is read, it can be read on: what there
    is by then, and the result.
    """

    def __init__(self, llm: LLM, request_id: str) -> None:
        self._llm = llm
        self.request_id = request_id
        self.chunks: deque[Chunk] = deque()  # made and not read

    def __next__(self) -> Chunk:
        try:
            chunk = self._llm._next(self)
        except BaseException:
            self.abort()
            raise
        if chunk is None:
            raise StopIteration
        return chunk

    def abort(self) -> None:
        """End the request now, unless it has ended."""
        self._llm._end(self.request_id)

    def close(self) -> None:
        """`abort`, and drop what was not read."""
        self.abort()
        self.chunks.clear()

    def __del__(self) -> None:
        self._llm._drop(self.request_id)
