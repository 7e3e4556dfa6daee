"""Logs of pods over HTTP."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from tinykube.api.pods import stream_log


class Logs:
    """One line; ``is_open`` as long as somebody reads."""

    def __init__(self) -> None:
        self.is_open = False

    async def read(
        self, namespace: str, name: str, container: str, *, follow: bool, tail_lines: int | None
    ) -> AsyncGenerator[bytes, None]:
        self.is_open = True
        try:
            yield b"line\n"
        finally:
            self.is_open = False


async def test_log_is_closed_when_its_reader_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: web.StreamResponse, _data: bytes) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(web.StreamResponse, "write", fail)
    pod: Any = SimpleNamespace(json={"spec": {"containers": [{"name": "main"}]}}, key=("default", "one"))
    logs, request = Logs(), make_mocked_request("GET", "/")
    with pytest.raises(ConnectionResetError):
        await stream_log(request, pod, logs)
    assert not logs.is_open
