"""A proxy in front of the embedded AWS, whose calls a test can delay, refuse or drop."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import aiohttp
from aiohttp import web
from tests.serving import serving

FILE_SYSTEMS = "/2015-02-01/file-systems"

PassOn: TypeAlias = Callable[[web.Request], Awaitable[web.Response]]
# Answers a request, with the answer of AWS or another one.
Handler: TypeAlias = Callable[[web.Request, PassOn], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def aws_behind(handler: Handler, upstream: str) -> AsyncGenerator[str, None]:
    """The address of the proxy while the context is open; ``upstream`` is that of the embedded AWS."""
    async with aiohttp.ClientSession(upstream, auto_decompress=False) as session:

        async def pass_on(request: web.Request) -> web.Response:
            sent = session.request(
                request.method, request.path_qs, headers=request.headers, data=await request.read()
            )
            async with sent as answer:
                headers = {"Content-Type": answer.content_type}
                return web.Response(status=answer.status, body=await answer.read(), headers=headers)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await handler(request, pass_on)

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handle)
        async with serving(application) as url:
            yield url


def is_call(request: web.Request, method: str, path: str) -> bool:
    """Whether the request is that call."""
    return (request.method, request.path) == (method, path)
