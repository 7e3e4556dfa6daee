"""The mount target of these tests leaves nothing open: the warning would fail whatever test runs later."""

import asyncio
import gc
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.nfs_backend import Authority, Backend
from tests.integration.tunnel_node import FS, host_of


def test_stopped_mount_target_leaves_no_connection_open(tmp_path: Path) -> None:
    """Also none in the middle of its handshake, when the loop ends at once."""
    authority = Authority(tmp_path, "authority")

    async def connect_and_stop() -> None:
        async with Backend(authority, "fs-1.efs.example.com") as target:
            reader, writer = await asyncio.open_connection(target.address, 2049)
            await asyncio.sleep(0)
        assert await reader.read() == b""
        writer.close()

    asyncio.run(connect_and_stop())
    gc.collect()


@pytest.mark.parametrize("turns", range(6))
async def test_stopping_closes_a_connection_at_any_step_of_its_acceptance(tmp_path: Path, turns: int) -> None:
    async with Backend(Authority(tmp_path, "ca"), host_of(FS)) as backend:
        await asyncio.sleep(0)  # it waits for connections now
        # The kernel has made it when the loop first sees the listener.
        with socket.create_connection((backend.address, 2049)) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await backend.stop()
            for _ in range(6):
                await asyncio.sleep(0)
            gc.collect()  # warns about what was not closed
            client.settimeout(5)
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""
