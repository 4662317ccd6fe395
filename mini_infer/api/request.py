"""Requests read more strictly than the framework does: bounded bodies, no coercion, every field accounted for."""

from __future__ import annotations

import asyncio
import re
from itertools import islice
from typing import Any

import msgspec
from litestar import Request
from litestar.types import Empty

from mini_infer.api import fields
from mini_infer.api.errors import ApiError, ClientGone, from_decoding

MAX_DRAINED = 4
"""A body over the limit is read and dropped up to so many times the limit: a client that still writes would otherwise
see a reset in place of the answer."""

MAX_VALUES = 250_000
"""Texts, lists and objects in a body: a conversation that fits has far fewer. Decoding makes them all at one go, which
holds up everybody else; ten megabytes of `[],` would for half a second."""

_VALUES = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]', re.DOTALL)


class ApiRequest(Request[Any, Any, Any]):
    """Litestar asks `body` and `json` for the `data` of a handler; here they say precisely what is wrong with it."""

    ignored: list[str]  # names of fields that nobody knows

    async def body(self) -> bytes:
        """The whole body. Raises ApiError (413, 415, 400 for an empty one), ClientGone."""
        if self._body is Empty:
            self._check_type()
            body = (await self._read(self.app.state.serving.options.body_limit)).removeprefix(b"\xef\xbb\xbf")
            if not body.strip():
                raise ApiError(400, "invalid_json", "the body is empty: send a JSON object")
            self._body = self._connection_state.body = body
        return self._body

    def _check_type(self) -> None:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        # Pages of other sites can post without a type, and need no leave to: the type is what keeps them out.
        missing = not kind and "origin" in self.headers
        if missing or (kind and not re.fullmatch(r"application/([\w.-]+\+)?json", kind)):
            message = f"the content type is {kind or 'missing'}: send Content-Type: application/json"
            raise ApiError(415, "unsupported_media_type", message)
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "unsupported_media_type", "send the body without Content-Encoding")

    async def _read(self, limit: int) -> bytes:
        announced = self.headers.get("content-length", "")
        size, parts, more = 0, list[bytes](), True
        too_big = announced.isdecimal() and int(announced) > limit
        waits = "expect" in self.headers  # for our word before it sends anything
        while more and not (too_big and (waits or size > MAX_DRAINED * limit)):
            event: Any = await self.receive()
            if event["type"] == "http.disconnect":
                raise ClientGone
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if too_big := too_big or size > limit:
                parts.clear()
            more = event.get("more_body", False)
        if too_big:
            raise ApiError(
                413,
                "request_too_large",
                f"the body is larger than {limit} bytes: send less, or start the server with a larger --body-limit",
            )
        return b"".join(parts)

    async def json(self) -> Any:
        """The body as the type of the handler's `data`. Raises ApiError naming the field at fault."""
        body = await self.body()
        if len(body) > MAX_VALUES and sum(map(body.count, (b'"', b"[", b"{"))) > MAX_VALUES:
            await asyncio.to_thread(_check_values, body)
        field = self.route_handler.parsed_data_field
        kind: Any = field.annotation if field is not None else None
        try:
            body.decode()  # also what is skipped must be JSON
            given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            data = msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise from_decoding(error, body) from None
        serving = self.app.state.serving
        self.ignored = fields.check(given, kind, strict=serving.options.strict_params)
        serving.note_ignored(self.ignored)
        return data

    @property
    def notes(self) -> dict[str, str]:
        """Headers that tell a client which of its fields had no effect."""
        names = [name for name in self.ignored if re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII)]
        return {fields.IGNORED_HEADER: ", ".join(names[:20])} if names else {}


def _check_values(body: bytes) -> None:
    """Raises ApiError where a body has more than `MAX_VALUES`, brackets and quotes within texts not counted."""
    if sum(1 for _ in islice(_VALUES.finditer(body), MAX_VALUES + 1)) > MAX_VALUES:
        message = f"the body has more than {MAX_VALUES} texts, lists and objects: send fewer"
        raise ApiError(413, "request_too_large", message)
