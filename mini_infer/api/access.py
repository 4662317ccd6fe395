"""What goes around the whole application: a request id on every answer, one log line, a count, and a last net.

An ASGI wrapper of its own, because the framework's middleware does not see requests that match no route.
"""

from __future__ import annotations

import asyncio
import logging
import re
from time import perf_counter
from typing import Any
from uuid import uuid4

from mini_infer.api.errors import ApiError, ClientGone, shutting_down
from mini_infer.api.serving import Serving

log = logging.getLogger("mini_infer")
access = logging.getLogger("mini_infer.access")

_OUTCOMES = {"disconnect": 499, "timeout": 499}


class Outermost:
    """`app` with all that. HEAD is answered as GET is: the server leaves the body out.

    The `send` that `app` gets raises ClientGone where a client has read nothing for the options' `send_timeout`.
    """

    def __init__(self, app: Any, serving: Serving) -> None:
        self._app = app
        self._serving = serving

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        asked = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = asked if re.fullmatch(rb"[!-~]{1,128}", asked) else b"req-" + uuid4().hex.encode()
        began, status, is_stream, is_whole = perf_counter(), 0, False, False

        async def noting(message: Any) -> None:
            nonlocal status, is_stream, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", []))
                is_stream = any(v.startswith(b"text/event-stream") for k, v in headers if k.lower() == b"content-type")
                message = {**message, "headers": [*headers, (b"x-request-id", request_id)]}
            try:
                async with asyncio.timeout(self._serving.options.send_timeout):
                    await send(message)
                is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)
            except TimeoutError:
                state["outcome"] = "timeout"
                await _cut(receive)
                raise ClientGone from None

        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            await self._app(inner, receive, noting)
        except asyncio.CancelledError:  # a forced end: this task is over, and the server would print it as a fault
            if not status:
                await _send(noting, shutting_down())
            elif not is_whole:
                await _cut(receive)
        except Exception as error:
            if state.get("outcome") == "timeout":
                return
            log.error("request %s failed: %s", request_id.decode(), type(error).__name__, exc_info=error)
            if status:
                raise
            await _send(noting, ApiError(500, "internal_error", "the server failed"))
        finally:
            status = _OUTCOMES.get(state.get("outcome", ""), status)
            endpoint = str(inner.get("path_template") or "unmatched")
            self._serving.http.answered(endpoint, status, stream=is_stream)
            quiet = endpoint.startswith("/health") and status == 200
            client = scope.get("client") or ("-", 0)
            access.log(
                logging.DEBUG if quiet else logging.INFO,
                '%s "%s %s" %d %.0f ms %s',
                client[0],
                scope["method"],
                ascii(scope.get("raw_path", b"").decode("latin-1"))[1:-1][:200],
                status,
                1e3 * (perf_counter() - began),
                request_id.decode(),
            )


async def _cut(receive: Any) -> None:
    """End the connection without waiting for what its client does not read. ASGI has no word for that, so this asks
    uvicorn's own object, and does nothing with another server."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()
        await asyncio.sleep(0)  # until the protocol knows


async def _send(send: Any, error: ApiError) -> None:
    body = error.body
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
