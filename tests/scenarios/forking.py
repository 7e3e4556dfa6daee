"""Processes of kube-efs and moto, forked from a process that has loaded their modules.

They behave like started programs, without the loading, which takes a second of processor time. Scenarios
start some hundred of them.
"""

import asyncio
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from fake_efs.process import ChildProcess
from tinykube.kubelet.syscalls import die_with_parent

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.scenarios.loaded", __name__])
_ALL_DESCRIPTORS = 1 << 20


async def fork_module(
    module: str, *arguments: str, environment: Mapping[str, str], log_file: Path
) -> ChildProcess:
    """``python -m MODULE ARGUMENTS`` with this environment and no other; see ``Starter``."""
    given = (module, arguments, dict(environment), log_file)
    process = _CONTEXT.Process(target=_run, args=given, daemon=True)
    await asyncio.to_thread(process.start)
    return ChildProcess(_Forked(process), module, log_file)


class _Forked:
    """A process with the interface of asyncio; created in a running loop."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid
        self.pid = process.pid
        self.returncode: int | None = None
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._loop.add_reader(process.sentinel, self._end)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        self._process.join()
        self.returncode = self._process.exitcode
        self._process.close()
        self._ended.set()


def _run(module: str, arguments: tuple[str, ...], environment: Mapping[str, str], log_file: Path) -> None:
    """Become that program."""
    os.setsid()
    with log_file.open("ab") as log:
        for output in (1, 2):
            os.dup2(log.fileno(), output)
    # One of them keeps the process that this comes from alive, with which it is to end.
    os.closerange(3, _ALL_DESCRIPTORS)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    die_with_parent(signal.SIGTERM)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
