"""The application: routes, and what holds for all of them."""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property
from typing import Any

from litestar import Litestar, Request, Router
from litestar.config.cors import CORSConfig
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.response import Response

from mini_infer.api import chat, completions, engine_routes
from mini_infer.api.access import Outermost
from mini_infer.api.auth import KeyGuard
from mini_infer.api.errors import ApiError, ClientGone, as_api_error
from mini_infer.api.fields import IGNORED_HEADER
from mini_infer.api.request import ApiRequest
from mini_infer.api.serving import Serving
from mini_infer.version import __version__

log = logging.getLogger("mini_infer")

CORS_HEADERS = "authorization, content-type, x-api-key, x-request-id"


class _Cors(CORSConfig):
    """Names the headers that browsers must ask for, also to a preflight that asks for none."""

    @cached_property
    def preflight_headers(self) -> dict[str, str]:
        return super().preflight_headers | {"Access-Control-Allow-Headers": CORS_HEADERS}


def create_app(serving: Serving) -> Outermost:
    """An ASGI application over a service that `Serving.start` has started."""
    options = serving.options
    guard = KeyGuard(options.api_key)
    guarded = [
        chat.chat_completions,
        completions.completions,
        engine_routes.list_models,
        engine_routes.one_model,
        engine_routes.version,
        engine_routes.metrics,
        engine_routes.tokenize,
        engine_routes.detokenize,
        *([engine_routes.engine_state] if options.observe else []),
    ]
    cors = None
    if options.cors_origins:
        methods: Any = ["GET", "POST", "OPTIONS"]
        expose = ["x-request-id", "retry-after", IGNORED_HEADER]
        cors = _Cors(allow_origins=list(options.cors_origins), allow_methods=methods, expose_headers=expose)
    app = Litestar(
        [Router("/", route_handlers=guarded, guards=[guard]), engine_routes.health, engine_routes.ready],
        request_class=ApiRequest,
        exception_handlers={HTTPException: _fault, Exception: _fault},
        cors_config=cors,
        openapi_config=OpenAPIConfig(
            title="mini-infer",
            version=__version__,
            description="OpenAI's routes, and a few for whoever runs the server.",
            use_handler_docstrings=True,
            render_plugins=[JsonRenderPlugin()],
            openapi_router=Router(
                "/schema", route_handlers=[], guards=[guard], include_in_schema=False, before_request=_describe
            ),
        ),
        request_max_body_size=None,  # `ApiRequest` does it, and lets the client see why
        logging_config=None,
        state=State({"serving": serving}),
    )
    return Outermost(app, serving)


async def _describe(request: Request[Any, Any, Any]) -> None:
    """Made on first use, which takes long enough to hold up streams: on a thread."""
    await asyncio.to_thread(lambda: request.app.openapi_schema)


def _fault(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Every error as JSON, whatever the route answers otherwise."""
    if isinstance(error, ClientGone):
        return Response(b"", status_code=499, media_type="application/json")
    handler = request.scope.get("route_handler")
    field = getattr(handler, "parsed_data_field", None)
    fault = as_api_error(error, getattr(field.annotation, "__struct_fields__", ()) if field is not None else ())
    if fault.code == "internal_error" and not isinstance(error, ApiError):
        log.error("a request failed", exc_info=error)
    if fault.status in (400, 429, 503):
        request.app.state.serving.http.rejected(fault.code)
    return Response(fault.body, status_code=fault.status, headers=fault.headers, media_type="application/json")
