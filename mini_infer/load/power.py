"""Memory and energy of the machine: NVML where there is an NVIDIA driver, RAPL where it may be read, else nothing.

Nothing is estimated: a figure that no device gives is None.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

Source = Literal["auto", "nvml", "rapl", "none"]

EVERY_S = 0.2


class Reading(Struct, frozen=True):
    """`joules` counts from anywhere; `watts` is power now; `memory` bytes in use on the device."""

    joules: float | None = None
    watts: float | None = None
    memory: int | None = None


class Meter(Protocol):
    name: str

    def read(self) -> Reading: ...


class Energy(Struct, frozen=True, kw_only=True):
    """Of one level. `idle_w` is the power before any load, measured for a few seconds."""

    source: str | None = None
    memory_peak_bytes: int | None = None
    power_w: float | None = None
    idle_w: float | None = None
    joules: float | None = None
    tokens_per_joule: float | None = None
    tokens_per_joule_net: float | None = None
    """Of the energy beyond that of an idle machine."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """One NVIDIA device by its driver's own library. Raises OSError where there is none."""

    name = "NVML"

    def __init__(self, device: int = 0) -> None:
        self._lib = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle = ctypes.c_void_p()
        if self._lib.nvmlInit_v2() or self._lib.nvmlDeviceGetHandleByIndex_v2(device, ctypes.byref(self._handle)):
            raise OSError("no NVIDIA device")

    def read(self) -> Reading:
        memory, milliwatts, millijoules = _Memory(), ctypes.c_uint(), ctypes.c_ulonglong()
        lib, handle = self._lib, self._handle
        return Reading(
            memory=None if lib.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) else memory.used,
            watts=None if lib.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts)) else milliwatts.value / 1e3,
            joules=None
            if lib.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
            else millijoules.value / 1e3,
        )


class Rapl:
    """The energy counters of the CPU packages. Raises OSError where they may not be read."""

    name = "RAPL"

    def __init__(self, root: Path = Path("/sys/class/powercap")) -> None:
        self._packages = sorted(p for p in root.glob("intel-rapl:*") if p.name.count(":") == 1)
        if not self._packages:
            raise OSError("no RAPL")
        self._ranges = [int((p / "max_energy_range_uj").read_text()) for p in self._packages]
        self._last = self._counters()
        self._joules = 0.0

    def _counters(self) -> list[int]:
        return [int((p / "energy_uj").read_text()) for p in self._packages]

    def read(self) -> Reading:
        """Counters wrap around; read often enough, they are told apart from falling ones."""
        now = self._counters()
        grown = ((new - old) % (span + 1) for new, old, span in zip(now, self._last, self._ranges, strict=True))
        self._joules += sum(grown) / 1e6
        self._last = now
        return Reading(joules=self._joules)


def find_meter(source: Source) -> Meter | None:
    """The best meter of this machine that `source` allows."""
    for name, make in (("nvml", Nvml), ("rapl", Rapl)):
        if source in ("auto", name):
            try:
                return make()
            except (OSError, AttributeError, ValueError):
                continue
    return None


class PowerMonitor:
    """Measures levels with a meter; without one all figures are None."""

    def __init__(self, meter: Meter | None) -> None:
        self.meter = meter
        self.idle_w: float | None = None
        self.readings: list[tuple[float, Reading]] = []

    async def measure_idle(self, seconds: float = 2.0) -> None:
        """The machine's power before any load."""
        if self.meter is not None:
            async with self.running():
                await asyncio.sleep(seconds)
            self.idle_w = energy(self.readings, None, None, None).power_w

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reads the meter at both ends and five times a second between."""
        self.readings = []
        if self.meter is None:
            yield
            return
        sampler = asyncio.create_task(self._sample(self.meter))
        try:
            yield
        finally:
            sampler.cancel()
            await asyncio.wait({sampler})
            self.readings.append((time.perf_counter(), self.meter.read()))

    async def _sample(self, meter: Meter) -> None:
        while True:
            self.readings.append((time.perf_counter(), meter.read()))
            await asyncio.sleep(EVERY_S)

    def result(self, tokens: int) -> Energy:
        """Of the readings since `running` was entered, for so many output tokens."""
        if self.meter is None:
            return Energy()
        return energy(self.readings, self.meter.name, self.idle_w, tokens)


def energy(
    readings: Sequence[tuple[float, Reading]], source: str | None, idle_w: float | None, tokens: int | None
) -> Energy:
    """Energy by the counter where the device has one, else by the trapezoid rule over its power."""
    if len(readings) < 2 or (seconds := readings[-1][0] - readings[0][0]) <= 0:
        return Energy(source=source, idle_w=idle_w)
    first, last = readings[0][1], readings[-1][1]
    joules: float | None = None
    if first.joules is not None and last.joules is not None:
        joules = last.joules - first.joules
    elif all(r.watts is not None for _, r in readings):
        pairs = pairwise(readings)
        joules = sum((b - a) * ((x.watts or 0.0) + (y.watts or 0.0)) / 2 for (a, x), (b, y) in pairs)
    net = None if joules is None or idle_w is None else joules - idle_w * seconds
    memory = [r.memory for _, r in readings if r.memory is not None]
    return Energy(
        source=source,
        memory_peak_bytes=max(memory, default=None),
        power_w=None if joules is None else joules / seconds,
        idle_w=idle_w,
        joules=joules,
        tokens_per_joule=tokens / joules if tokens and joules else None,
        tokens_per_joule_net=tokens / net if tokens and net and net > 0 else None,
    )
