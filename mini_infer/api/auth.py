"""The API key: whoever shows it may use the server."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from mini_infer.api.errors import ApiError


class KeyGuard:
    """Lets requests pass that carry the key, as `Authorization: Bearer …` or `X-Api-Key`; all of them without a key.

    Digests are compared, in a time that does not depend on where they differ.
    """

    def __init__(self, key: str | None) -> None:
        self._digest = None if key is None else _digest(key)

    def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        if self._digest is None or connection.scope.get("method") == "OPTIONS":
            return
        scheme, _space, bearer = connection.headers.get("authorization", "").partition(" ")
        shown = [connection.headers.get("x-api-key", ""), bearer.strip() if scheme.lower() == "bearer" else ""]
        if not any(secrets.compare_digest(_digest(key), self._digest) for key in shown):
            message = "the API key is wrong" if any(shown) else "an API key is needed: Authorization: Bearer …"
            raise ApiError(401, "invalid_api_key", message, headers={"www-authenticate": "Bearer"})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
