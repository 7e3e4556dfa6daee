"""One container from its first start to its last end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import structlog

from tinykube.client.calls import ERRORS
from tinykube.errors import InvalidValue, TinykubeError
from tinykube.kubelet.commands import RunningCommand, run_in
from tinykube.kubelet.launch import START_FAILED_CODE, Launch
from tinykube.kubelet.logs import last_lines
from tinykube.kubelet.planning import ContainerPaths
from tinykube.kubelet.pods import Container, Pod, RestartPolicy
from tinykube.kubelet.probes import Check, follow_readiness
from tinykube.kubelet.process import ContainerProcess, StartFailed
from tinykube.kubelet.states import (
    ContainerState,
    Running,
    State,
    Terminated,
    Waiting,
    restarts,
)

log = structlog.get_logger(__name__)

_FIRST_BACK_OFF_SECONDS = 0.2
_LAST_BACK_OFF_SECONDS = 10.0
# After this long a container is taken to have been well, and the next failure is a first one again.
_WELL_SECONDS = 60.0
_KILLED_CODE = 137  # 128 and SIGKILL
_MESSAGE_BYTES = 4096
_MESSAGE_LINES = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a container is started, and what is asked of it then."""

    launch: Launch
    readiness: Check | None = None


Prepare = Callable[[], Awaitable[Start]]


class NotRunning(TinykubeError):
    """The container is not running just now."""


class Report(Protocol):
    """Posts an event on the pod."""

    def __call__(self, reason: str, message: str, *, warning: bool = True) -> None:
        """Post it soon."""


class ContainerRunner:
    """Starts a container, again and again as the policy says; ``state`` is always what has become of it.

    ``changed`` is called after each change of ``state``.
    """

    def __init__(
        self,
        pod: Pod,
        container: Container,
        policy: RestartPolicy,
        paths: ContainerPaths,
        *,
        changed: Callable[[], None],
        report: Report,
    ) -> None:
        self.container = container
        self.paths = paths
        self.state = ContainerState(name=container.name, image=container.image)
        self._pod = pod
        self._policy = policy
        self._changed = changed
        self._report = report
        self._process: ContainerProcess | None = None
        self._launch: Launch | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._back_off = _FIRST_BACK_OFF_SECONDS

    @property
    def path(self) -> Path:
        """The log."""
        return self.paths.log

    @property
    def running(self) -> bool:
        """Whether it is just running."""
        return isinstance(self.state.state, Running)

    @property
    def finished(self) -> bool:
        """Whether it has ended for good."""
        return isinstance(self.state.state, Terminated) and self.state.state.final

    def run_command(
        self, argv: tuple[str, ...], *, reads: bool
    ) -> AbstractAsyncContextManager[RunningCommand]:
        """A further command in the container, to be entered as a context; raises NotRunning."""
        if not self.running or self._process is None or self._launch is None:
            raise NotRunning(f'container "{self.container.name}" is not running')
        return run_in(self._process.launcher, replace(self._launch, argv=argv), reads=reads)

    async def run(self, prepare: Prepare) -> int:
        """Run to the last end; its exit code. When cancelled, every process is gone afterwards."""
        try:
            while not self.finished and not self._stopping:
                if isinstance(self.state.state, Terminated):
                    await self._back_off_before_restart()
                await self._run_once(prepare)
        finally:
            if self._process is not None:
                await self._process.kill()
                # Not so when the kubelet ends: what a pod was then is for the next one to judge.
                if self._stopping and isinstance(self.state.state, Running):
                    self._end(_terminated(_KILLED_CODE, "Error", "", self.state.state.since))
        return self.state.state.exit_code if isinstance(self.state.state, Terminated) else 0

    def stop(self) -> None:
        """Ask it to end, and do not start it again."""
        self._stopping = True
        if self._process is not None:
            self._process.terminate()

    async def stopped(self) -> None:
        """Wait until it is not running."""
        await self._idle.wait()

    async def _run_once(self, prepare: Prepare) -> None:
        """Start it and wait for its end; raises nothing but what cancels."""
        start = await self._prepare(prepare)
        if start is None or self._stopping:
            return
        self._idle.clear()
        try:
            await self._start_and_wait(start)
        finally:
            self._idle.set()

    async def _start_and_wait(self, start: Start) -> None:
        started_at = datetime.now(UTC)
        try:
            self._process = await ContainerProcess.start(start.launch, self.paths.log)
            self._launch = start.launch
        except (StartFailed, OSError) as error:
            problem = error.problem if isinstance(error, StartFailed) else str(error)
            self._report("Failed", f"Error: {problem}")
            self._end(_terminated(START_FAILED_CODE, "StartError", problem, started_at))
            return
        self._report("Started", f"Started container {self.container.name}", warning=False)
        self._set(Running(since=started_at, ready=start.readiness is None))
        if self._stopping:
            self._process.terminate()
        began = asyncio.get_running_loop().time()
        code = await self._probed(self._process, start)
        if asyncio.get_running_loop().time() - began > _WELL_SECONDS:
            self._back_off = _FIRST_BACK_OFF_SECONDS
        self._process = None
        message = await asyncio.to_thread(self._final_message, code)
        self._end(_terminated(code, "Completed" if code == 0 else "Error", message, started_at))

    async def _probed(self, process: ContainerProcess, start: Start) -> int:
        """Ask it whether it is ready until it has ended; its exit code."""
        if start.readiness is None:
            return await process.wait()
        probing = asyncio.create_task(follow_readiness(start.readiness, self._said))
        try:
            return await process.wait()
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)

    def _said(self, ready: bool, problem: str) -> None:
        if isinstance(self.state.state, Running):
            self._set(replace(self.state.state, ready=ready))
        if problem:
            self._report("Unhealthy", f"Readiness probe failed: {problem}")

    async def _prepare(self, prepare: Prepare) -> Start | None:
        """How to start it, None after having waited because that is not known yet."""
        try:
            start = await prepare()
            await asyncio.to_thread(self._make_files)
        except ERRORS as error:
            reason = (
                "CreateContainerError" if isinstance(error, InvalidValue) else "CreateContainerConfigError"
            )
            text = str(error)
            if self.state.state != Waiting(reason=reason, message=text):
                self._set(Waiting(reason=reason, message=text))
                self._report("Failed", f"Error: {text}")
            await self._pause()
            return None
        return start

    async def _back_off_before_restart(self) -> None:
        name = self.container.name
        self._report("BackOff", f"Back-off restarting failed container {name} in pod {self._pod.name}")
        message = f"back-off {self._back_off:g}s restarting failed container={name} pod={self._pod.name}"
        restart = self.state.restarts + 1
        self._set(Waiting(reason="CrashLoopBackOff", message=message))
        await self._pause()
        self.state = replace(self.state, restarts=restart)

    async def _pause(self) -> None:
        await asyncio.sleep(self._back_off)
        self._back_off = min(self._back_off * 2, _LAST_BACK_OFF_SECONDS)

    def _make_files(self) -> None:
        self.paths.scratch.mkdir(parents=True, exist_ok=True)
        self.paths.log.parent.mkdir(parents=True, exist_ok=True)
        self.paths.message.write_bytes(b"")
        self.paths.message.chmod(0o666)  # whatever user the container runs as

    def _final_message(self, code: int) -> str:
        written = last_lines(self.paths.message, lines=_MESSAGE_BYTES, size_bytes=_MESSAGE_BYTES)
        if written or code == 0 or not self.container.message_from_logs:
            return written
        return last_lines(self.paths.log, lines=_MESSAGE_LINES, size_bytes=_MESSAGE_BYTES // 2)

    def _end(self, ended: Terminated) -> None:
        final = self._stopping or not restarts(self._policy, ended.exit_code)
        self._set(replace(ended, final=final))

    def _set(self, state: State) -> None:
        last = self.state.state if isinstance(self.state.state, Terminated) else self.state.last
        self.state = replace(self.state, state=state, last=last)
        self._changed()


def _terminated(code: int, reason: str, message: str, started_at: datetime) -> Terminated:
    return Terminated(
        exit_code=code,
        reason=reason,
        message=message,
        started_at=started_at,
        finished_at=datetime.now(UTC),
    )
