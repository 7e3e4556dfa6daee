"""Further commands in containers that are running, with pipes to whoever asked for them."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tinykube.kubelet.launch import Launch, render_launch
from tinykube.kubelet.process import PACKAGES

_PROGRAM = "tinykube.kubelet.entering"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCommand:
    """A command that runs; ``outputs`` are the standard one and that for errors."""

    input: asyncio.StreamWriter | None
    outputs: tuple[asyncio.StreamReader, ...]
    process: asyncio.subprocess.Process

    async def wait(self) -> int:
        """The exit code, once it has ended; 137 when it was killed."""
        code = await self.process.wait()
        return code if code >= 0 else 128 - code


@asynccontextmanager
async def run_in(launcher: int, launch: Launch, *, reads: bool) -> AsyncIterator[RunningCommand]:
    """Run a command in the container that this launcher has started; it is gone when the context is left.

    ``launch`` has the command, in the surroundings of the container's own. Raises OSError.
    """
    async with AsyncExitStack() as stack:
        given, ours = os.pipe() if reads else (os.open(os.devnull, os.O_RDONLY), None)
        (output, their_output), (errors, their_errors) = os.pipe(), os.pipe()
        theirs = given, their_output, their_errors
        try:
            writer = None if ours is None else await _writer(ours, stack)
            readers = await _reader(output, stack), await _reader(errors, stack)
            process = await _start(launcher, launch, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        try:
            yield RunningCommand(input=writer, outputs=readers, process=process)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


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
