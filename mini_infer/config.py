"""Every engine knob, once: its name, default, meaning and limits. The command line's options are made from this.

Imports no torch, so that the command line can parse and refuse before anything heavy is loaded.
"""

from __future__ import annotations

import re
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal, cast, get_args

from mini_infer.errors import UserError, is_utf8

Device = Literal["auto", "cpu", "cuda", "mps"]
DType = Literal["auto", "bfloat16", "float16", "float32", "float64"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgt]i?)?b?)", re.IGNORECASE)

Kind = Literal["text", "choice", "count", "size", "flag"]


def parse_size(text: str) -> int:
    """Bytes of "1.5GB" (powers of 1000), "512MiB" (powers of 1024) or a plain number of bytes.

    Raises UserError for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UserError(f"not a size: {text!r}; write for instance 1.5GB, 512MiB or a number of bytes")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


EMBEDDED = "demo"
"""The name of the model, and of the draft model, that come with the package."""


def _knob(default: Any, kind: Kind, help: str, **more: Any) -> Any:
    """A field with what the command line and the checks need: kind, help, metavar, choices, least, most, auto, cli."""
    return field(default=default, metadata={"kind": kind, "help": help, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How an engine is built. A knob that is None takes its default from the device or the model (see `resolve`).

    Raises UserError, naming the option, its value and the remedy, for a value that cannot work.
    """

    model: str = _knob(
        EMBEDDED,
        "text",
        "The checkpoint: a folder, a Hugging Face repository (owner/name), or demo, the small model that comes with "
        "mini-infer.",
        metavar="PATH|REPO",
    )
    revision: str | None = _knob(
        None, "text", "Branch, tag or commit of a Hugging Face repository.  [default: main]", metavar="REV"
    )
    draft: str | None = _knob(
        None,
        "text",
        "Who drafts tokens for the model to verify: a smaller checkpoint with the same tokenizer, ngram (what followed "
        "the last few tokens before), or none.  [default: with the demo model its own draft, else none]",
        metavar="PATH|REPO|ngram|none",
    )
    draft_tokens: int | Literal["auto"] = _knob(
        "auto",
        "count",
        "Drafts per sequence and step, up to 8. auto chooses by what pays; 0 keeps the draft loaded and silent.",
        auto=True,
        least=0,
        most=8,
    )
    device: Device = _knob(
        "auto",
        "choice",
        "Where the model runs; auto takes the first of cuda, mps, cpu that is there.",
        choices=get_args(Device),
    )
    dtype: DType = _knob(
        "auto",
        "choice",
        "Number format of weights and KV cache; auto is the checkpoint's own.",
        choices=get_args(DType),
    )
    kv_blocks: int | None = _knob(
        None,
        "count",
        "Size of the KV cache in blocks.  [default: the least of 4096, a quarter of the free memory, "
        "and what --max-running full contexts need]",
        least=2,
    )
    kv_memory: int | None = _knob(
        None, "size", "Size of the KV cache in bytes (1.5GB, 512MiB), in place of --kv-blocks.", metavar="SIZE", least=1
    )
    block_size: int = _knob(16, "count", "Tokens per KV block.", least=1)
    prefix_cache: bool = _knob(True, "flag", "Reuse the KV blocks of equal prompt beginnings.")
    max_model_len: int | None = _knob(
        None, "count", "Longest context (prompt and answer) in tokens.  [default: the checkpoint's]", least=2
    )
    max_running: int | None = _knob(
        None, "count", "Most sequences in one step.  [default: 16 on cpu and mps, 64 on cuda]", least=1
    )
    max_batch_tokens: int | None = _knob(
        None, "count", "Most tokens in one step.  [default: 256 on cpu and mps, 2048 on cuda]", least=1
    )
    max_chunk: int | None = _knob(
        None, "count", "Most prompt tokens of one sequence in one step.  [default: half of --max-batch-tokens]", least=1
    )
    threads: int | None = _knob(
        None, "count", "CPU threads of the kernels.  [default: torch's choice]", least=1, most=1024
    )
    entropy_seed: int | None = _knob(
        None, "count", "Where unseeded requests draw their seeds from; None is the system.", least=0, cli=False
    )

    def __post_init__(self) -> None:
        for knob in fields(self):
            value = getattr(self, knob.name)
            if knob.metadata["kind"] == "size" and isinstance(value, str):
                object.__setattr__(self, knob.name, value := parse_size(value))
            if value is None and knob.default is None:
                continue
            _check(knob, value)
        if self.kv_blocks is not None and self.kv_memory is not None:
            raise UserError("--kv-blocks and --kv-memory both set the size of the KV cache: give only one of them")
        if self.max_batch_tokens is not None:
            batch = f"--max-batch-tokens {self.max_batch_tokens}"
            if self.max_running is not None and self.max_batch_tokens < self.max_running:
                raise UserError(
                    f"{batch} is below --max-running {self.max_running}: each running sequence needs a token "
                    "per step; raise the first or lower the second"
                )
            if self.max_chunk is not None and self.max_chunk > self.max_batch_tokens:
                raise UserError(f"--max-chunk {self.max_chunk} is above {batch}: lower the first or raise the second")

    @property
    def drafter(self) -> str:
        """`draft`; where none was given, "demo" (the embedded draft) beside the embedded model and else "none"."""
        return self.draft or (EMBEDDED if self.model == EMBEDDED else "none")

    def resolve(self, device_type: str) -> EngineConfig:
        """A copy for that device ("cpu", "cuda", "mps"), with the limits of a step filled in.

        What was given stands, and the defaults make room for it. `dtype`, `kv_blocks` and `max_model_len` depend
        on the model and stay as they are.
        """
        big = device_type == "cuda"
        running, batch, chunk = self.max_running, self.max_batch_tokens, self.max_chunk
        if running is None:
            running = min(64 if big else 16, batch or 2**31)
        if batch is None:
            batch = max(2048 if big else 256, running, chunk or 1)
        if chunk is None:
            chunk = max(batch // 2, 1)
        return replace(
            self, device=cast(Device, device_type), max_running=running, max_batch_tokens=batch, max_chunk=chunk
        )


def option_name(name: str) -> str:
    """The command line's spelling of a field: `max_running` is `--max-running`."""
    return "--" + name.replace("_", "-")


def _check(knob: Field[Any], value: object) -> None:
    """One knob by its own metadata; raises UserError."""
    option, about = option_name(knob.name), knob.metadata
    kind: Kind = about["kind"]
    if kind == "choice" and value not in about["choices"]:
        raise UserError(f"{option} is {value!r}: it must be one of {', '.join(about['choices'])}")
    if kind == "flag" and not isinstance(value, bool):
        raise UserError(f"{option} is {value!r}: it must be True or False")
    if kind == "text" and (not isinstance(value, str) or not value.strip() or not is_utf8(value)):
        raise UserError(f"{option} is {value!r}: give {about.get('metavar', 'a text')}, in UTF-8")
    if kind in ("count", "size") and not (value == "auto" and about.get("auto")):
        if not isinstance(value, int) or isinstance(value, bool):
            auto = " or auto" if about.get("auto") else ""
            raise UserError(f"{option} is {value!r}: it must be a whole number{auto}")
        if value < about["least"]:
            raise UserError(f"{option} is {value}: it must be at least {about['least']}")
        if value > about.get("most", value):
            raise UserError(f"{option} is {value}: it must be at most {about['most']}")
