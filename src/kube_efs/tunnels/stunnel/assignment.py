"""Which stunnel of the node serves which tunnel: the shards, from plain values.

stunnel prepares all its services again at each reload, so a new tunnel would cost more with each tunnel that
exists. The tunnels on demand are therefore spread over shards of at most ``SHARD_SIZE`` tunnels. Each shard
is a stunnel of its own. The rules, in this order:

1. The tunnels of the ConfigMap are in shard 0, whatever their number: users of the older system know its
   file. No tunnel on demand is added to it. It keeps those that an agent without shards has loaded into it.
2. A tunnel stays in its shard. To move it, its port must be closed and opened again.
3. A new tunnel goes to the fullest shard with room. So the tunnels of the others can end, and with them the
   shards.
4. The last few tunnels of a shard can move to other shards while nothing uses them (``find_merge``).
"""

import glob
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Final

from kube_efs.tunnels.data_plane import TunnelService

# A reload takes 1.4 ms of processor time for each tunnel of the shard, and a further process 2.2 MiB.
SHARD_SIZE: Final = 16
_FIRST: Final = 0
_NEARLY_EMPTY: Final = SHARD_SIZE // 4


def shard_path(first: Path, number: int) -> Path:
    """The configuration file of a shard; ``first`` is that of shard 0."""
    return first if number == _FIRST else first.with_name(f"{first.stem}-{number}{first.suffix}")


def shard_number(first: Path, path: Path) -> int | None:
    """The number of the shard with the file ``path``; None if the file is not that of a shard."""
    if path == first:
        return _FIRST
    number = path.stem.removeprefix(f"{first.stem}-")
    is_number = number.isascii() and number.isdecimal()
    return int(number) if is_number and path == shard_path(first, int(number)) else None


def shard_files(first: Path) -> Mapping[int, Path]:
    """The existing configuration files, by the number of their shard."""
    found = {shard_number(first, path): path for path in first.parent.glob(f"{glob.escape(first.stem)}*")}
    return {number: path for number, path in sorted(found.items(), key=str) if number is not None}


def assign(
    services: Iterable[TunnelService], before: Mapping[str, int], *, running: Collection[int] = ()
) -> Mapping[str, int]:
    """The shard of each service, by name; ``before`` are the shards of earlier services.

    A new shard gets none of the ``running`` numbers. Such a shard without services is about to end, but only
    when it has no connections; a new service would make it close their ports at once.
    """
    assigned: dict[str, int] = {}
    new: list[str] = []
    for service in services:
        if service.certificate is None:
            assigned[service.name] = _FIRST
        elif service.name in before:
            assigned[service.name] = before[service.name]
        else:
            new.append(service.name)
    sizes = _sizes(assigned)
    for name in sorted(new):
        number = _fullest_with_room(sizes)
        if number is None:
            number = next(one for one in count(_FIRST + 1) if one not in sizes and one not in running)
        assigned[name] = number
        sizes[number] += 1
    return assigned


def mergeable(assigned: Mapping[str, int]) -> frozenset[str]:
    """The tunnels of the shards that are nearly empty."""
    sizes = _sizes(assigned)
    return frozenset(name for name, number in assigned.items() if 0 < sizes[number] <= _NEARLY_EMPTY)


def find_merge(assigned: Mapping[str, int], unused: Collection[str]) -> Mapping[str, int]:
    """The new shards of the tunnels of one shard, which can then end; empty if none can.

    The shard is nearly empty, all its tunnels are ``unused``, and the other shards have room for them.
    """
    candidates = mergeable(assigned)
    busy = {assigned[name] for name in candidates.difference(unused)}
    sizes = _sizes(assigned)
    small = {assigned[name] for name in candidates} - busy
    if not small:
        return {}
    leaving = min(small, key=lambda number: (sizes[number], -number))
    del sizes[leaving]
    moves: dict[str, int] = {}
    for name in sorted(name for name, number in assigned.items() if number == leaving):
        number = _fullest_with_room(sizes)
        if number is None:
            return {}
        moves[name] = number
        sizes[number] += 1
    return moves


def _sizes(assigned: Mapping[str, int]) -> Counter[int]:
    """The sizes of the shards of tunnels on demand."""
    return Counter(number for number in assigned.values() if number != _FIRST)


def _fullest_with_room(sizes: Mapping[int, int]) -> int | None:
    roomy = (number for number, size in sizes.items() if size < SHARD_SIZE)
    return max(roomy, key=lambda number: (sizes[number], -number), default=None)
