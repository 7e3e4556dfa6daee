"""Packet loss, as with a deleted mount target or a wrong security group."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.kernel.guest.work import run


@asynccontextmanager
async def packets_lost(*addresses: str) -> AsyncIterator[None]:
    """Packets to these loopback addresses are dropped while the context is open."""
    await run("tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "prio", "bands", "4")
    try:
        await run("tc", "qdisc", "add", "dev", "lo", "parent", "1:4", "netem", "loss", "100%")
        for address in addresses:
            match = ("protocol", "ip", "u32", "match", "ip", "dst", f"{address}/32", "flowid", "1:4")
            await run("tc", "filter", "add", "dev", "lo", "parent", "1:", *match)
        yield
    finally:
        await run("tc", "qdisc", "delete", "dev", "lo", "root")
