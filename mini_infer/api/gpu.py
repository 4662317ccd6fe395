"""What the GPU says of itself, read when somebody asks for the metrics; nothing at all where it says nothing.

NVML comes with NVIDIA's driver. It is called directly: there are four functions to call, and no package to install.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    import torch

LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


class GpuCollector(Collector):
    """Power (watts), energy (joules) and memory (bytes) of the device that `find` gives; None while there is none."""

    def __init__(self, find: Callable[[], torch.device | None]) -> None:
        self._find = find

    def describe(self) -> list[Metric]:
        return []  # nothing is read when this is registered

    def collect(self) -> Iterator[Metric]:
        device = self._find()
        if device is None or device.type != "cuda":
            return
        import torch

        reserved, peak = torch.cuda.memory_reserved(device), torch.cuda.max_memory_reserved(device)
        yield _gauge("mini_infer_torch_memory_reserved_bytes", "GPU memory that torch holds.", reserved)
        yield _gauge("mini_infer_torch_memory_peak_bytes", "The most that torch held.", peak)
        nvml = Nvml.open(f"GPU-{getattr(torch.cuda.get_device_properties(device), 'uuid', '')}")
        if nvml is not None:
            yield from nvml.read()


class _Memory(ctypes.Structure):
    """nvmlMemory_t"""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """One GPU behind the library. What it does not support is left out."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    @classmethod
    def open(cls, uuid: str, load: Callable[[str], Any] = ctypes.CDLL) -> Nvml | None:
        """None where there is no driver, or no such GPU."""
        try:
            library = load(LIBRARY)
        except OSError:
            return None
        handle = ctypes.c_void_p()  # opening it anew each time costs nothing: the library counts its users
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
            return None
        return cls(library, handle)

    def read(self) -> Iterator[Metric]:
        power = self._ask("nvmlDeviceGetPowerUsage", ctypes.c_uint())
        if power is not None:
            yield _gauge("mini_infer_gpu_power_watts", "What the GPU draws.", power.value / 1e3)
        energy = self._ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong())
        if energy is not None:
            text = "What the GPU has used since its driver was loaded."
            yield CounterMetricFamily("mini_infer_gpu_energy_joules", text, energy.value / 1e3)
        memory = self._ask("nvmlDeviceGetMemoryInfo", _Memory())
        if memory is not None:
            yield _gauge("mini_infer_gpu_memory_used_bytes", "GPU memory in use, by whomever.", memory.used)

    def _ask(self, function: str, result: Any) -> Any:
        call = getattr(self._library, function, None)
        return None if call is None or call(self._handle, ctypes.byref(result)) else result


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)
