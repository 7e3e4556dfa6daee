"""Further commands in containers that are running, with pipes or a terminal to whoever asked for them."""

import asyncio
import fcntl
import os
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tinykube.kubelet.launch import Launch, render_launch
from tinykube.kubelet.process import PACKAGES

_PROGRAM = "tinykube.kubelet.entering"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCommand:
    """A command that runs; ``outputs`` are the standard one and that for errors, or those of its terminal."""

    input: asyncio.StreamWriter | None
    outputs: tuple[asyncio.StreamReader, ...]
    process: asyncio.subprocess.Process
    terminal: int | None = None

    async def wait(self) -> int:
        """The exit code, once it has ended; 137 when it was killed."""
        code = await self.process.wait()
        return code if code >= 0 else 128 - code

    def resize(self, columns: int, rows: int) -> None:
        """Tell its terminal, if it has one, how large the one of the people before it is."""
        if self.terminal is not None:
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@asynccontextmanager
async def run_in(
    launcher: int, launch: Launch, *, reads: bool, terminal: bool
) -> AsyncIterator[RunningCommand]:
    """Run a command in the container that this launcher has started; it is gone when the context is left.

    ``launch`` has the command, in the surroundings of the container's own. Raises OSError.
    """
    async with AsyncExitStack() as stack:
        ends = _terminal() if terminal else _pipes(reads=reads)
        try:
            writer = None if ends.input is None else await _writer(ends.input, stack)
            readers = tuple([await _reader(output, stack) for output in ends.outputs])
            process = await _start(launcher, launch, ends.theirs)
        finally:
            for descriptor in {*ends.theirs}:
                os.close(descriptor)
        try:
            yield RunningCommand(
                input=writer, outputs=readers, process=process, terminal=ends.outputs[0] if terminal else None
            )
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """The two ends of everything between a command and whoever asked for it; ``theirs`` are 0, 1 and 2."""

    theirs: tuple[int, int, int]
    input: int | None
    outputs: tuple[int, ...]


def _pipes(*, reads: bool) -> _Ends:
    given, ours = os.pipe() if reads else (os.open(os.devnull, os.O_RDONLY), None)
    (output, theirs), (errors, their_errors) = os.pipe(), os.pipe()
    return _Ends(theirs=(given, theirs, their_errors), input=ours, outputs=(output, errors))


def _terminal() -> _Ends:
    ours, theirs = os.openpty()
    return _Ends(theirs=(theirs, theirs, theirs), input=os.dup(ours), outputs=(ours,))


async def _writer(descriptor: int, stack: AsyncExitStack) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())  # for its flow control
    file: Any = os.fdopen(descriptor, "wb", buffering=0)
    transport, _ = await loop.connect_write_pipe(lambda: protocol, file)
    stack.callback(_abort, transport)
    return asyncio.StreamWriter(transport, protocol, None, loop)


def _abort(transport: asyncio.WriteTransport) -> None:
    if not transport.is_closing():  # which cannot be told it twice
        transport.abort()


async def _reader(descriptor: int, stack: AsyncExitStack) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    file: Any = os.fdopen(descriptor, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), file
    )
    stack.callback(transport.close)
    return reader


async def _start(launcher: int, launch: Launch, ends: tuple[int, int, int]) -> asyncio.subprocess.Process:
    file = os.memfd_create("launch")
    try:
        os.write(file, render_launch(launch))
        os.lseek(file, 0, os.SEEK_SET)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-P", "-m", _PROGRAM, str(launcher), str(file)),
            stdin=ends[0],
            stdout=ends[1],
            stderr=ends[2],
            pass_fds=(file,),
            env={"PYTHONPATH": str(PACKAGES)},
            start_new_session=True,
        )
    finally:
        os.close(file)
