"""Permanently incomplete kernel tables: readers see only parts of them, or nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import IDLE_SECONDS
from tests.kernel.guest.waiting import until
from tests.kernel.guest.work import run, working

# The driver sends its holders to the agent each 70 s, and must have left one out twice.
_FORGOTTEN_SECONDS = 240.0
_TORN_SECONDS = 0.02


async def no_tunnel_closes_with_incomplete_tables(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        before = nfs_mount(target)
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            async with (
                _torn_mounts(node.driver.pid, machine.folder),
                _torn_sockets(node.tunnel.pid, machine.folder),
            ):
                await until(
                    lambda: "tunnel-holder-without-mount" in node.driver.log_file.read_text(),
                    "the driver believes what it reads",
                    seconds=_FORGOTTEN_SECONDS,
                )
                await _pass(IDLE_SECONDS * 2)
            # Nobody holds the tunnel now, and every reading is good. But it is used.
            await _pass(IDLE_SECONDS * 2)
            [tunnel] = await node.tunnels()
            assert (tunnel.port, tunnel.holders) == (before.port, frozenset())
            await work.continues()
        assert nfs_mount(target) == before
        await node.unpublish(volume, target)


@asynccontextmanager
async def _torn_mounts(pid: int, folder: Path) -> AsyncIterator[None]:
    """While the context is open, that process sees no mounts, or only the first ones."""
    table, shown = Path(f"/proc/{pid}/mountinfo"), folder / "mountinfo"
    text = await asyncio.to_thread(table.read_text)
    async with _shown(shown, ("", text[: len(text) // 2])):  # to the middle of a line
        await run("mount", "--bind", str(shown), str(table))
        yield
        await run("umount", str(table))


@asynccontextmanager
async def _torn_sockets(pid: int, folder: Path) -> AsyncIterator[None]:
    """While the context is open, that process sees no sockets, with or without the heading of the table."""
    # The kernel lets nothing stay mounted on the table alone.
    tables, shown = Path(f"/proc/{pid}/net"), folder / "net"
    text = await asyncio.to_thread((tables / "tcp").read_text)
    shown.mkdir()
    async with _shown(shown / "tcp", ("", text.splitlines(keepends=True)[0])):
        await run("mount", "--bind", str(shown), str(tables))
        yield
        await run("umount", str(tables))


@asynccontextmanager
async def _shown(file: Path, texts: tuple[str, ...]) -> AsyncIterator[None]:
    await asyncio.to_thread(file.write_text, texts[0])
    alternating = asyncio.create_task(_alternate(file, texts))
    try:
        yield
    finally:
        alternating.cancel()


async def _alternate(file: Path, texts: tuple[str, ...]) -> None:
    while True:
        for text in texts:
            await asyncio.to_thread(file.write_text, text)
            await asyncio.sleep(_TORN_SECONDS)


async def _pass(seconds: float) -> None:
    """Wait for that time, because no condition shows that something does not happen."""
    await asyncio.sleep(seconds)
