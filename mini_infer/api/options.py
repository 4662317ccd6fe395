"""What a server is told at its start, once, checked."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from mini_infer.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the API behaves. The fields are the options of `mini-infer serve`.

    Raises UserError, naming the option and the remedy, for a value that cannot work.
    """

    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes a free one
    api_key: str | None = None
    served_model_name: str | None = None  # None: the name of the model
    any_model: bool = False  # answer whatever model a request asks for
    max_waiting: int = 256  # sequences that may wait
    max_n: int = 16  # answers to one prompt
    drain_seconds: float = 30.0  # how long a shutdown lets answers finish
    cors_origins: tuple[str, ...] = ()
    strict_params: bool = False  # refuse fields nobody knows, in place of ignoring them
    sse_keepalive: float = 15.0  # seconds of silence in a stream before a comment; 0 sends none
    send_timeout: float = 30.0  # seconds a client may leave a full socket unread
    body_limit: int = 10_000_000  # bytes
    observe: bool = False  # GET /v1/engine/state

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"--port is {self.port}: it must be from 0 (any free one) to 65535")
        if self.api_key is not None and not re.fullmatch(r"[!-~]+", self.api_key):
            raise UserError("--api-key must be visible ASCII characters without spaces: headers carry no others")
        if self.served_model_name is not None and not self.served_model_name.strip():
            raise UserError("--served-model-name is empty: give the name that clients ask for")
        for origin in self.cors_origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise UserError(f"--cors-origin is {origin!r}: write for instance https://example.org, or * for all")
        for name, least in (("max_waiting", 0), ("max_n", 1), ("body_limit", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name)}: it must be at least {least}")
        for name in ("drain_seconds", "sse_keepalive", "send_timeout"):
            value = getattr(self, name)
            rule = "above 0" if name == "send_timeout" else "at least 0"
            if not 0 <= value < 1e9 or (name == "send_timeout" and value == 0):
                raise UserError(f"--{name.replace('_', '-')} is {value}: it must be a number of seconds, {rule}")

    @property
    def is_exposed(self) -> bool:
        """Other machines can connect, and no key stops them."""
        if self.api_key is not None or self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a host name, or empty: all interfaces
            return True
