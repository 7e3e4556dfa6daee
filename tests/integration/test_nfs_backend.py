"""The mount target of these tests."""

import asyncio
import gc
from pathlib import Path

from tests.integration.nfs_backend import Authority, Backend


def test_stopped_mount_target_leaves_no_connection_open(tmp_path: Path) -> None:
    """Also none in the middle of its handshake: pytest fails for what Python still has to close."""
    authority = Authority(tmp_path, "authority")

    async def connect_and_stop() -> None:
        async with Backend(authority, "fs-1.efs.example.com") as target:
            reader, writer = await asyncio.open_connection(target.address, 2049)
            await asyncio.sleep(0)
        assert await reader.read() == b""
        writer.close()

    asyncio.run(connect_and_stop())
    gc.collect()
