"""Serving an application of a test over HTTP."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """The address under which the application is served meanwhile, on a free port of this machine."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def answering(answer: Callable[[web.Request], Awaitable[web.Response]], below: str = "/") -> web.Application:
    """One that answers every request below that path in the same way; its rest is ``path``."""
    app = web.Application()
    app.router.add_route("*", f"{below}{{path:.*}}", answer)
    return app
