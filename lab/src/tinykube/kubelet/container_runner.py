"""One container from its first start to its last end."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
from lightkube.models.core_v1 import Container, Probe

from tinykube.client.calls import ERRORS
from tinykube.errors import InvalidValue, TinykubeError
from tinykube.kubelet.containers import ContainerFiles
from tinykube.kubelet.launch import START_FAILED_CODE, Launch
from tinykube.kubelet.logs import last_bytes
from tinykube.kubelet.node import ADDRESS
from tinykube.kubelet.pod_status import ContainerState, render_time, waiting
from tinykube.kubelet.processes import ContainerProcess, RunningCommand, StartFailed, run_in

_FIRST_BACK_OFF_SECONDS = 0.2
_LAST_BACK_OFF_SECONDS = 10.0
_KILLED_CODE = 137  # 128 and SIGKILL
_MESSAGE_BYTES = 4096
# Kubernetes too asks sooner than its period while a container is not ready.
_UNREADY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Start:
    """How a container is started, and where it is asked then whether it is ready, if it is."""

    launch: Launch
    readiness_url: str


class NotRunning(TinykubeError):
    """The container is not running just now."""


class ContainerRunner:
    """Starts a container, again and again as the policy says; ``state`` is always what has become of it.

    ``prepare`` says how to start it, or raises one of ERRORS and is asked again. ``changed`` is called after
    each change of ``state``, ``report`` posts an event on the pod.
    """

    def __init__(
        self,
        container: Container,
        files: ContainerFiles,
        policy: str,
        *,
        prepare: Callable[["ContainerRunner"], Awaitable[Start]],
        changed: Callable[[], None],
        report: Callable[[str, str], None],
    ) -> None:
        self.container = container
        self.files = files
        self.state = ContainerState(name=container.name, image=container.image or "")
        self._policy = policy
        self._prepare = prepare
        self._changed = changed
        self._report = report
        self._process: ContainerProcess | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    @property
    def finished(self) -> bool:
        """Whether it has ended for good."""
        return self.state.exit_code is not None

    def run_command(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[RunningCommand]:
        """A further command in the container, to be entered as a context; raises NotRunning."""
        if self._process is None or "running" not in self.state.state:
            raise NotRunning(f'container "{self.container.name}" is not running')
        return run_in(self._process.launcher, replace(self._process.launch, argv=argv))

    async def run(self) -> int:
        """Run to the last end; its exit code. When cancelled, every process is gone afterwards."""
        try:
            while not self.finished and not self._stopping:
                if "terminated" in self.state.state:
                    await self._back_off()
                start = await self._start()
                if start is not None and not self._stopping:
                    self._idle.clear()
                    try:
                        await self._start_and_wait(start)
                    finally:
                        self._idle.set()
        finally:
            if self._process is not None:
                await self._process.kill()
                # Not so when the kubelet ends: what a pod was then is for the next one to judge.
                if self._stopping and "running" in self.state.state:
                    self._end(_KILLED_CODE, "Error", "", self.state.state["running"]["startedAt"])
        return self.state.exit_code or 0

    def stop(self) -> None:
        """Ask it to end, and do not start it again."""
        self._stopping = True
        if self._process is not None:
            self._process.terminate()

    async def stopped(self) -> None:
        """Wait until it is not running."""
        await self._idle.wait()

    async def _start(self) -> Start | None:
        """How to start it, None after having waited because that is not known yet."""
        try:
            start = await self._prepare(self)
            await asyncio.to_thread(self.files.make)
        except ERRORS as error:
            wrong = isinstance(error, InvalidValue)
            state = waiting("CreateContainerError" if wrong else "CreateContainerConfigError", str(error))
            if self.state.state != state:
                self._set(state=state)
                self._report("Failed", f"Error: {error}")
            await asyncio.sleep(_FIRST_BACK_OFF_SECONDS)
            return None
        return start

    async def _start_and_wait(self, start: Start) -> None:
        started_at = render_time(datetime.now(UTC))
        try:
            self._process = await ContainerProcess.start(start.launch, self.files.log)
        except (StartFailed, OSError) as error:
            problem = error.problem if isinstance(error, StartFailed) else str(error)
            self._report("Failed", f"Error: {problem}")
            self._end(START_FAILED_CODE, "StartError", problem, started_at)
            return
        self._set(state={"running": {"startedAt": started_at}}, ready=not start.readiness_url)
        if self._stopping:
            self._process.terminate()
        probing = asyncio.create_task(self._follow_readiness(start.readiness_url))
        try:
            code = await self._process.wait()
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        self._process = None
        message = await asyncio.to_thread(self._termination_message, code)
        self._end(code, "Completed" if code == 0 else "Error", message, started_at)

    async def _follow_readiness(self, url: str) -> None:
        probe = self.container.readinessProbe
        if probe is not None and url:
            async for ready in follow_readiness(probe, url):
                self._set(ready=ready)

    async def _back_off(self) -> None:
        restarts = self.state.restarts
        pause = min(_FIRST_BACK_OFF_SECONDS * 2 ** min(restarts, 10), _LAST_BACK_OFF_SECONDS)
        message = f"back-off {pause:g}s restarting failed container={self.container.name}"
        self._set(state=waiting("CrashLoopBackOff", message))
        await asyncio.sleep(pause)
        self.state = replace(self.state, restarts=restarts + 1)

    def _termination_message(self, code: int) -> str:
        written = last_bytes(self.files.message, _MESSAGE_BYTES)
        if written or code == 0 or self.container.terminationMessagePolicy != "FallbackToLogsOnError":
            return written
        return last_bytes(self.files.log, _MESSAGE_BYTES // 2)

    def _end(self, code: int, reason: str, message: str, started_at: str) -> None:
        again = self._policy == "Always" or (self._policy == "OnFailure" and code != 0)
        ended = {
            "exitCode": code,
            "reason": reason,
            **({"message": message} if message else {}),
            "startedAt": started_at,
            "finishedAt": render_time(datetime.now(UTC)),
        }
        final = self._stopping or not again
        self._set(state={"terminated": ended}, ready=False, exit_code=code if final else None)

    def _set(self, **fields: Any) -> None:  # noqa: ANN401 - of ContainerState
        ended = "state" in fields and "terminated" in self.state.state
        self.state = replace(self.state, **fields, last=self.state.state if ended else self.state.last)
        self._changed()


def readiness_url(container: Container, moved: str | None) -> str:
    """Where it is asked over HTTP whether it is ready, at the port to which it was moved if it was.

    Empty when nobody asks.
    """
    asks = container.readinessProbe and container.readinessProbe.httpGet
    if not asks:
        return ""
    named = {one.name: one.containerPort for one in container.ports or () if one.name}
    port = moved or named.get(str(asks.port), asks.port)
    return f"http://{asks.host or ADDRESS}:{port}/{(asks.path or '').removeprefix('/')}"


async def follow_readiness(probe: Probe, url: str) -> AsyncGenerator[bool, None]:
    """Whether it is ready, each time that this has changed; not so at first. As pkg/kubelet/prober asks."""
    ready, failures = False, 0
    while True:
        good = await _answers(url, timeout_seconds=probe.timeoutSeconds or 1)
        failures = 0 if good else failures + 1
        if ready is not good and (good or failures >= (probe.failureThreshold or 3)):
            ready = good
            yield ready
        await asyncio.sleep((probe.periodSeconds or 10) if ready else _UNREADY_SECONDS)


async def _answers(url: str, *, timeout_seconds: float) -> bool:
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    with suppress(TimeoutError, aiohttp.ClientError):
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            return 200 <= answer.status < 400
    return False
