"""A second signal cancels what is in flight: the client is told, and nobody sees a traceback."""

import asyncio

import pytest

from mini_infer.api.access import Outermost
from mini_infer.api.options import ServerOptions
from mini_infer.api.serving import Serving


@pytest.mark.parametrize("begun", [False, True])
def test_a_cancelled_request_ends_in_order(begun):
    def build():
        raise AssertionError("nothing is loaded here")

    sent = []

    async def run():
        waiting = asyncio.Event()

        async def app(scope, receive, send):
            if begun:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if begun:  # as a stream does
                    await send({"type": "http.response.body", "body": b"bye", "more_body": False})
                raise

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "headers": []}
        task = asyncio.create_task(Outermost(app, Serving(build, ServerOptions(), "m"))(scope, None, send))
        await waiting.wait()
        task.cancel()
        await task  # raises nothing

    asyncio.run(run())
    assert sent[0]["status"] == (200 if begun else 503)
    assert sent[-1]["more_body"] is False
    assert len(sent) == 2
