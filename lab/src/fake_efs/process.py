"""A program that runs beside this one, is logged to a file, and never outlives it."""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, Self

from fake_efs.errors import PlatformError

_POLL_SECONDS = 0.02
_TERMINATION_SECONDS = 1.0
_LOG_TAIL_BYTES = 2000
_LISTENS = "0A"  # TCP_LISTEN in the tables of /proc/net
# The parent may have died before the child asked for a signal at its death.
_RUN_UNLESS_ORPHANED = '[ "$PPID" = "$0" ] && exec "$@"'


class RunningProcess(Protocol):
    """A process, as asyncio has them."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """How it ended, a signal as its negative number; None while it runs."""

    def terminate(self) -> None:
        """Send it SIGTERM."""

    def kill(self) -> None:
        """Send it SIGKILL."""

    async def wait(self) -> int:
        """How it ended, once it has."""


class ChildProcess:
    """A running program; made by ``start`` and ended by ``stop``."""

    def __init__(self, process: RunningProcess, name: str, log_file: Path) -> None:
        self._process = process
        self._name = name
        self._log_file = log_file

    @classmethod
    async def start(
        cls,
        program: str,
        *arguments: str,
        log_file: Path,
        environment: Mapping[str, str] | None = None,
        death_signal: str = "KILL",
    ) -> Self:
        """Run a program with its output appended to ``log_file``; raises PlatformError if it is missing.

        The kernel sends it ``death_signal`` when this process dies, however that happens; Ctrl-C in a
        terminal does not reach it, so that it is ended in order.
        """
        found = shutil.which(program)
        if found is None:
            raise PlatformError("is not installed", field="program", value=program)
        setpriv = shutil.which("setpriv")
        wrapper: tuple[str, ...] = ()
        if setpriv:
            check = ("/bin/sh", "-c", _RUN_UNLESS_ORPHANED, str(os.getpid()))
            wrapper = (setpriv, "--pdeathsig", death_signal, *check)
        with log_file.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *wrapper,
                found,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        return cls(process, Path(program).name, log_file)

    @property
    def pid(self) -> int:
        """Its process id; the wrapper is replaced by the program, so this is the program's own."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """How it ended, a signal as its negative number; None while it runs."""
        return self._process.returncode

    async def listening_port(self, *, timeout_seconds: float) -> int:
        """The loopback port that the program has opened, asked of the kernel.

        Programs are started with port 0, so nobody can take the port between choosing and opening it.
        Raises PlatformError when the program ends first or the time is over.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self.running:
                    # Health comes first; the controller may serve a page besides.
                    for port in await asyncio.to_thread(_listening_ports, self.pid):
                        return port
                    await asyncio.sleep(_POLL_SECONDS)
        raise self.failure("did not open its port")

    def failure(self, problem: str) -> PlatformError:
        """An error about this program that ends with the last lines of its log."""
        tail = self._log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return PlatformError(
            problem, field="program", value=self._name, remedy=f"see {self._log_file}, which ends: {tail}"
        )

    async def wait(self) -> int:
        """Wait until it has ended; gives its exit code."""
        return await self._process.wait()

    async def stop(self, *, timeout_seconds: float = _TERMINATION_SECONDS) -> None:
        """End it: SIGTERM, and SIGKILL after the timeout. Ending what has ended does nothing."""
        try:
            if self.running:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_seconds):
                        await self._process.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


class Starter(Protocol):
    """Starts ``python -m MODULE ARGUMENTS``, with that environment and no other, and its output in a file."""

    async def __call__(
        self, module: str, *arguments: str, environment: Mapping[str, str], log_file: Path
    ) -> ChildProcess:
        """The process, which gets SIGTERM when this one dies; raises PlatformError."""


async def start_module(
    module: str, *arguments: str, environment: Mapping[str, str], log_file: Path
) -> ChildProcess:
    """As a program of its own; see ``Starter``."""
    return await ChildProcess.start(
        sys.executable,
        "-m",
        module,
        *arguments,
        log_file=log_file,
        environment=environment,
        # It may have children of its own to end.
        death_signal="TERM",
    )


def _listening_ports(pid: int) -> list[int]:
    """The ports that the process listens on, in the order of its file descriptors; none when it is gone."""
    port_by_inode = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():  # tcp6, where the kernel has no IPv6
            continue
        for line in table.read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS:
                port_by_inode[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    ports = {}
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(descriptor.readlink())
                if target in port_by_inode:
                    ports[int(descriptor.name)] = port_by_inode[target]
    return [ports[descriptor] for descriptor in sorted(ports)]
