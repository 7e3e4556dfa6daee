"""Runs the sessions of a page in one shell, so that a variable lives until the page ends."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.docs.blocks import Block, Command

GIVEN = Path(__file__).with_name("given")
_END = "::end::"


class Shell:
    """A bash that runs commands one after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, command: Command, *, seconds: float) -> tuple[int, str]:
        """Run a command; returns exit status and output. Fails after the timeout."""
        assert self._process.stdin
        assert self._process.stdout
        # Without standard input: a command must not eat the next one.
        script = f"{{ {command.text}\n}} </dev/null\nprintf '\\n{_END}%d\\n' $?\n"
        self._process.stdin.write(script.encode())
        await self._process.stdin.drain()
        printed: list[str] = []
        try:
            async with asyncio.timeout(seconds):
                while line := (await self._process.stdout.readline()).decode():
                    if line.startswith(_END):
                        return int(line.removeprefix(_END)), "".join(printed)
                    printed.append(line)
        except TimeoutError:
            raise AssertionError(f"not done in {seconds:.0f} s: {command.text}\n{''.join(printed)}") from None
        raise AssertionError(f"the shell has ended: {command.text}\n{''.join(printed)}")


@asynccontextmanager
async def shell(folder: Path, environment: Mapping[str, str]) -> AsyncGenerator[Shell, None]:
    """A shell in that directory; its remaining processes are killed at the end."""
    process = await asyncio.create_subprocess_exec(
        "bash",
        cwd=folder,
        env=dict(environment),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield Shell(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def run_page(
    blocks: list[Block], folder: Path, environment: Mapping[str, str], *, seconds: float = 120.0
) -> None:
    """Write the page's files and run its sessions in order; fails at the first difference."""
    for block in blocks:
        if block.file:
            await asyncio.to_thread((folder / block.file).write_text, block.text)
    async with shell(folder, environment) as running:
        for block in blocks:
            given = [Command(text=f"bash {GIVEN / block.given}.sh")] if block.given else []
            for command in (*given, *block.commands) if block.is_run else ():
                status, output = await running.run(command, seconds=seconds)
                where = f"{block.page}:{block.line}: $ {command.text}\n{output}"
                assert status == 0, f"exit status {status} of {where}"
                assert not command.missing(output), f"not printed: {command.missing(output)} by {where}"
