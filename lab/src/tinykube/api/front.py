"""The outermost layer of HTTP: who may ask, what is asked, and refusals as ``Status`` objects."""

from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog
from aiohttp import web

from tinykube.api.discovery import Discovery
from tinykube.api.handlers import USER, ResourceHandlers
from tinykube.api.negotiation import JSON
from tinykube.api.paths import parse_resource_path
from tinykube.objects.statuses import ApiError, internal_error, unauthorized
from tinykube.objects.storage import encode
from tinykube.objects.users import User, Users

log = structlog.get_logger()

_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})
_BODY_LIMIT_BYTES = 3 * 1024 * 1024  # as kube-apiserver's


def make_application(
    users: Users, clock: Callable[[], datetime], discovery: Discovery, resources: ResourceHandlers
) -> web.Application:
    """The web application; everything but health and version wants a token."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path in _HEALTH:
            return web.Response(text="ok")
        if request.path != "/version":
            request[USER] = _authenticate(request, users, clock())
        path = parse_resource_path(request.rel_url.raw_path)
        if path is not None:
            return await resources.handle(request, path)
        return discovery.answer(request)

    application = web.Application(client_max_size=_BODY_LIMIT_BYTES, middlewares=[_refusals])
    application.router.add_route("*", "/{path:.*}", answer)
    return application


def _authenticate(request: web.Request, users: Users, now: datetime) -> User:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    user = users.find(token.strip(), now) if scheme.lower() == "bearer" else None
    if user is None:
        raise unauthorized()
    return user


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn refusals into their Status; a fault of this server is logged and answered with 500."""
    try:
        return await handler(request)
    except ApiError as error:
        return _refusal(error)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(ApiError(413, "RequestEntityTooLarge", f"limit is {_BODY_LIMIT_BYTES} bytes"))
    except ConnectionError:
        # The client went away in the middle of its answer; nobody is left to tell.
        raise
    except Exception as error:
        log.exception("api_request_failed", method=request.method, path=request.path)
        return _refusal(internal_error(f"{type(error).__name__}: {error}"))


def _refusal(error: ApiError) -> web.Response:
    retry = error.status.get("details", {}).get("retryAfterSeconds")
    headers = {"Content-Type": JSON, **({"Retry-After": str(retry)} if retry else {})}
    return web.Response(status=error.code, body=encode(error.status) + b"\n", headers=headers)
