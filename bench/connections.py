"""Connections of several mounts of one volume, and what more of them gain, on a kernel of its own."""

import asyncio
import statistics
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from bench.figures import Figure, Row, plain
from bench.guest_connections import MOUNTS, NCONNECT, ROUNDS, connections
from tests.kernel.uml import Guest, what_is_missing

_GUEST_SECONDS: Final = 600.0
_WAYS: Final = {"nconnect": f"nconnect={NCONNECT}", "tunnels": "a tunnel for each mount"}


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """The numbers of connections, and the writes in the same time compared with one connection."""
    if missing := what_is_missing():
        raise RuntimeError(missing)
    scenario = connections.__name__
    guest = Guest(module=connections.__module__, scenarios=(scenario,), folder=folder / "guest")
    result = (await asyncio.to_thread(guest.run, seconds=_GUEST_SECONDS))[scenario]
    if result.error:
        raise RuntimeError(result.error)
    found = result.figures
    yield plain(f"connections of {MOUNTS} mounts of one volume", found["shared_connections"])
    for way, name in _WAYS.items():
        detail = f"{found[f'{way}_ports']:g} loopback ports"
        yield plain(f"the same with {name}", found[f"{way}_connections"], detail=detail)
    for way, name in _WAYS.items():
        for size, text in (("small", "4 KiB writes to one mount"), ("large", "1 MiB writes to the other")):
            yield _ratio(f"{text}, {name} ÷ one connection", found, way, size)


def _ratio(name: str, found: Mapping[str, float], way: str, size: str) -> Figure:
    """The median over all rounds; a round without a write counts as one with one."""
    ratios = [
        max(1.0, found[f"{way}_{size}_{number}"]) / max(1.0, found[f"shared_{size}_{number}"])
        for number in range(ROUNDS)
    ]
    detail = f"{ROUNDS} rounds in turn, ratios {min(ratios):.2f} to {max(ratios):.2f}"
    return plain(name, statistics.median(ratios), detail=detail)


ROW: Final = Row(name="connections", measure=measure)
