"""Headless Chromium, controlled with its DevTools protocol."""

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

PROGRAM = next(
    filter(
        None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))
    ),
    None,
)
_SECONDS = 60.0
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-port=0",
)

# Levels of the log and the console. Less is not a complaint: the search of the site reports its progress.
_COMPLAINTS = frozenset({"assert", "error", "warning"})

Json = Mapping[str, Any]


class Page:
    """A page, with its requests, and its errors and warnings."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._session: str | None = None
        self._loaded = asyncio.Event()
        self.requests: list[str] = []
        self.complaints: list[str] = []

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str) -> AsyncGenerator[Self, None]:
        """A page of the browser at this address, while the context is open."""
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
            page = cls(socket)
            listening = asyncio.create_task(page._listen())
            try:
                await page._attach()
                yield page
            finally:
                listening.cancel()
                with suppress(asyncio.CancelledError):
                    await listening

    async def visit(self, url: str) -> None:
        """Load a page, and wait until it is loaded."""
        async with self._another_page():
            await self.call("Page.navigate", url=url)

    async def follow(self, script: str) -> None:
        """Evaluate an expression that makes the page open another one, and wait until that is loaded.

        A browser answers an evaluation with an error while it replaces the page: a loop that asks the page
        whether it is another one fails from time to time.
        """
        async with self._another_page():
            await self.evaluate(script)

    @asynccontextmanager
    async def _another_page(self) -> AsyncGenerator[None, None]:
        self._loaded.clear()
        self.requests.clear()
        self.complaints.clear()
        yield
        async with asyncio.timeout(_SECONDS):
            await self._loaded.wait()

    async def prefer(self, scheme: str) -> None:
        """Set the preferred color scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def press(self, key: str) -> None:
        """Press and release a key."""
        code = {"Tab": 9, "Enter": 13}[key]
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    async def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def call(self, method: str, **parameters: object) -> Json:
        """Send a command of the protocol; returns the answer."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json({**message, **({"sessionId": self._session} if self._session else {})})
        async with asyncio.timeout(_SECONDS):
            found: Json = await answer
        return found

    async def _attach(self) -> None:
        made = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def _listen(self) -> None:
        async for message in self._socket:
            body = json.loads(message.data)
            if "id" in body:
                answer = self._answers.pop(body["id"])
                if "error" in body:
                    answer.set_exception(AssertionError(body["error"]))
                else:
                    answer.set_result(body["result"])
            else:
                self._note(body["method"], body["params"])

    def _note(self, method: str, event: Json) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Network.requestWillBeSent":
                self.requests.append(event["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(event["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if event["type"] in _COMPLAINTS:
                self.complaints.append(str(event["args"]))
            case "Log.entryAdded" if event["entry"]["level"] in _COMPLAINTS:
                self.complaints.append(event["entry"]["text"])


@asynccontextmanager
async def browser(folder: Path) -> AsyncGenerator[Page, None]:
    """A page of a new browser, which writes only to the directory and ends with the context."""
    assert PROGRAM is not None
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *_OPTIONS,
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with Page.opened(await _address(process)) as page:
            yield page
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said = []
    async with asyncio.timeout(_SECONDS):
        async for line in process.stderr:
            said.append(line.decode())
            found = re.search(r"DevTools listening on (ws://\S+)", said[-1])
            if found:
                return found[1]
    raise AssertionError(f"the browser ended: {''.join(said)}")
