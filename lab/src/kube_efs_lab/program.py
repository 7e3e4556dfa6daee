"""A process of kube-efs beside this one, as it would run in a pod: started, ended, killed, started again."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from fake_efs.errors import PlatformError
from fake_efs.process import ChildProcess, Starter, start_module

_START_SECONDS = 120.0
_POLL_SECONDS = 0.05
# kube-efs promises to need less than this after SIGTERM.
_STOP_SECONDS = 5.0


_MODULE = "kube_efs"


class Program:
    """``kube-efs COMMAND`` with an environment of its own, logging to a file.

    ``health_url`` is where it has served /healthz, /readyz and /metrics since its last start.
    """

    def __init__(
        self,
        command: str,
        environment: Mapping[str, str],
        log_file: Path,
        *,
        starter: Starter = start_module,
    ) -> None:
        self.log_file = log_file
        self.health_url = ""
        self._command = command
        self._environment = environment
        self._starter = starter
        self._process: ChildProcess | None = None

    def replica(
        self, log_file: Path, changes: Mapping[str, str], *, starter: Starter | None = None
    ) -> "Program":
        """One more of the same, not started, with these changes to its environment, by another starter."""
        environment = {**self._environment, **changes}
        return Program(self._command, environment, log_file, starter=starter or self._starter)

    @property
    def name(self) -> str:
        """The command line's words for it."""
        return f"kube-efs {self._command}"

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """Its process id; raises PlatformError when it was never started."""
        return self._started().pid

    async def start(self, *, timeout_seconds: float = _START_SECONDS) -> None:
        """Start it and wait until it serves its health; raises PlatformError with the end of its log."""
        self._process = await self._starter(
            _MODULE, self._command, environment=self._environment, log_file=self.log_file
        )
        port = await self._process.listening_port(timeout_seconds=timeout_seconds)
        self.health_url = f"http://127.0.0.1:{port}"

    async def ready(self, *, timeout_seconds: float = _START_SECONDS) -> None:
        """Wait until it says that it is ready; raises PlatformError when it does not."""
        try:
            async with asyncio.timeout(timeout_seconds), aiohttp.ClientSession() as session:
                while self.running and not await self._says_ready(session):  # noqa: ASYNC110 - asked from outside
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise self._started().failure("did not become ready") from None
        if not self.running:
            raise self._started().failure("has ended")

    async def _says_ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.health_url}/readyz") as answer:
                return answer.ok
        except aiohttp.ClientError:
            return False

    async def ended(self) -> int:
        """Wait until it has ended; gives its exit code."""
        return await self._started().wait()

    async def stop(self) -> int | None:
        """End it in order; gives its exit code, -9 when it did not end by itself, None if never started."""
        if self._process is None:
            return None
        await self._process.stop(timeout_seconds=_STOP_SECONDS)
        return self._process.exit_code

    async def kill(self) -> None:
        """End it as a crash would."""
        await self._started().kill()

    def _started(self) -> ChildProcess:
        if self._process is None:
            raise PlatformError("was not started", field="program", value=self.name)
        return self._process
