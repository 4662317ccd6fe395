"""A service that has nothing to do sleeps."""

from __future__ import annotations

import time

import pytest

from tests.support.serving import in_loop, params, serving

pytestmark = pytest.mark.timing


def cpu_seconds(service):
    return time.clock_gettime(time.pthread_getcpuclockid(service._thread.ident))


@pytest.mark.parametrize("state", ["idle", "paused with work", "paused for a while", "slowed down"])
def test_no_cpu_is_used_while_there_is_nothing_to_do(state):
    async def main():
        if state == "paused with work":
            service.pause()
        if state == "paused for a while":
            service.pause(lease_s=60)
        if state == "slowed down":
            service.set_speed(0.01)
        stream = await service.submit([1, 2, 3], params(5 if state == "idle" else 400))
        if state == "idle":
            async for _ in stream:
                pass
        time.sleep(0.1)
        before = cpu_seconds(service)
        time.sleep(1.0)
        used = cpu_seconds(service) - before
        print(f"\n{state}: {1e6 * used:.0f} µs in a second")
        assert used < 0.002
        stream.close()

    with serving(num_blocks=200) as service:
        in_loop(main)
