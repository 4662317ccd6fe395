"""`mini-infer info`: what the engine would run on, and how a model would use its memory."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass

from mini_infer.build import find_model, plan_cache, set_up_device
from mini_infer.commands.interrupt import exit_at_once, on_interrupt
from mini_infer.commands.terminal import Waiting, check_output, write
from mini_infer.config import EngineConfig
from mini_infer.memory import device_memory, size_text
from mini_infer.version import __version__


@dataclass(frozen=True, slots=True)
class Machine:
    """What torch says of this machine; sizes in bytes."""

    version: str
    python: str
    torch: str
    cuda_available: bool
    mps_available: bool
    device: str
    device_name: str
    total_memory: int
    free_memory: int | None
    threads: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model, and its draft model if it has one, would use the memory of a device; sizes in bytes.

    A block of the KV cache holds the rows of both.
    """

    model: str
    architecture: str
    dtype: str
    weights: int
    draft: str  # as --draft says
    draft_weights: int
    max_model_len: int
    block_size: int
    kv_blocks: int
    kv_bytes_per_block: int
    kv_memory: int
    kv_tokens: int
    spare: int | None  # free now, less weights and KV cache


def run(options: EngineConfig, *, as_json: bool) -> None:
    """Prints the machine, and the memory plan of the model."""
    check_output()
    with on_interrupt(exit_at_once):  # nothing to save
        with Waiting("loading torch"):
            machine = _machine(options)
        plan = _plan(options.resolve(machine.device), machine.free_memory)
    if as_json:
        write(json.dumps(asdict(machine) | {"plan": asdict(plan)}) + "\n")
        return
    _print(_machine_rows(machine))
    write(f"\nMemory plan of {plan.model}\n")
    _print(_plan_rows(plan))
    if plan.kv_tokens < plan.max_model_len:
        write("\nThe KV cache holds less than one full context: more fit with --kv-blocks or --kv-memory.\n")


def _machine(options: EngineConfig) -> Machine:
    import torch

    device = set_up_device(options)
    memory = device_memory(device)
    return Machine(
        version=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        cuda_available=torch.cuda.is_available(),
        mps_available=torch.backends.mps.is_available(),
        device=device,
        device_name=torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        total_memory=memory.total,
        free_memory=memory.free,
        threads=torch.get_num_threads(),
    )


def _plan(options: EngineConfig, free: int | None) -> Plan:
    """The plan of a resolved config. Nothing is loaded."""
    from mini_infer.models.loader import inspect_checkpoint
    from mini_infer.speculative.build import find_draft

    folder = find_model(options)
    models = [inspect_checkpoint(folder, options.dtype)]
    if draft := find_draft(options, folder):
        models.append(inspect_checkpoint(draft, models[0].dtype))
    weights = [model.nbytes for model in models]
    left = None if free is None or free < sum(weights) else free - sum(weights)  # too big: show by how much
    cache = plan_cache(options, models, left)
    return Plan(
        model=options.model,
        architecture=models[0].config.model_type,
        dtype=str(models[0].dtype).removeprefix("torch."),
        weights=weights[0],
        draft=options.drafter,
        draft_weights=sum(weights[1:]),
        max_model_len=cache.max_model_len,
        block_size=options.block_size,
        kv_blocks=cache.blocks,
        kv_bytes_per_block=cache.block_bytes,
        kv_memory=cache.blocks * cache.block_bytes,
        kv_tokens=cache.blocks * options.block_size,
        spare=None if free is None else free - sum(weights) - cache.blocks * cache.block_bytes,
    )


def _machine_rows(machine: Machine) -> list[tuple[str, str]]:
    free = "" if machine.free_memory is None else f", {size_text(machine.free_memory)} free"
    return [
        ("mini-infer", f"{machine.version} (Python {machine.python})"),
        ("torch", machine.torch),
        ("CUDA", "available" if machine.cuda_available else "not available"),
        ("device", f"{machine.device} ({machine.device_name})"),
        ("memory", f"{size_text(machine.total_memory)} in total{free}"),
        ("threads", str(machine.threads)),
    ]


def _plan_rows(plan: Plan) -> list[tuple[str, str]]:
    rows = [
        ("weights", f"{size_text(plan.weights)} ({plan.architecture}, {plan.dtype})"),
        *([("draft weights", size_text(plan.draft_weights))] if plan.draft_weights else []),
        (
            "KV cache",
            f"{size_text(plan.kv_memory)} ({plan.kv_blocks} blocks of {plan.block_size}: {plan.kv_tokens} tokens)",
        ),
        ("context", f"{plan.max_model_len} tokens"),
    ]
    if plan.spare is not None:
        rows.append(
            ("spare", size_text(plan.spare) if plan.spare >= 0 else f"none: {size_text(-plan.spare)} too little")
        )
    return rows


def _print(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    write("".join(f"{name:<{width}}  {value}\n" for name, value in rows))
