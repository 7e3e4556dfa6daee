"""Mounts from the node's loopback: the names of such servers, and the ports in mount options.

Users also write PersistentVolumes, and the resolver and the kernel accept several spellings. With a spelling
missing here, the port of a volume would look free. Therefore both functions accept everything that a mount
accepts.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator

_NAMES = frozenset(
    {
        "localhost",
        "localhost.localdomain",
        "localhost4",
        "localhost4.localdomain4",
        "localhost6",
        "localhost6.localdomain6",
        "ip6-localhost",
        "ip6-loopback",
    }
)
# Numbers as strtoul(3) parses them with base 0: the kernel and mount.nfs(8) use it for ports, inet_aton(3)
# for parts of addresses. The limits of the length refuse hostile texts.
_NUMBER = re.compile(
    r"\+?(?:0[xX](?P<hex>[0-9a-fA-F]{1,16})|(?P<octal>0[0-7]{0,16})|(?P<decimal>[1-9][0-9]{0,16}))"
)
_LAST_PORT = 65535


def is_loopback(server: str) -> bool:
    """Whether a mount from that server stays on the node: 127.0.0.0/8, ::1, localhost, in any spelling.

    The unspecified address counts, because a connection to it goes to the node itself.
    """
    host = server.strip().removeprefix("[").removesuffix("]").lower().removesuffix(".")
    if host in _NAMES or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return _is_loopback_number(host)
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (inner or address).is_loopback or (inner or address).is_unspecified


def _is_loopback_number(host: str) -> bool:
    """The forms of inet_aton(3) with fewer than four parts, or in octal or hexadecimal."""
    parts = [_number(part) for part in host.split(".")]
    first, last = parts[0], parts[-1]
    if len(parts) > 4 or None in parts or first is None or last is None:
        return False
    if len(parts) == 1:
        return last == 0 or last >> 24 == 127
    return first == 127 or not any(parts)


def ports_of(mount_options: Iterable[str], names: Iterable[str] = ("port", "mountport")) -> tuple[int, ...]:
    """The ports in the options of those names, in order; an entry may contain several options."""
    wanted = frozenset(names)
    return tuple(port for name, port in _ports(mount_options) if name in wanted)


def _ports(mount_options: Iterable[str]) -> Iterator[tuple[str, int]]:
    for option in ",".join(mount_options).split(","):
        name, _, value = option.partition("=")
        port = _number(value)
        if port is not None and 0 < port <= _LAST_PORT:
            yield name, port


def _number(text: str) -> int | None:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    if found["hex"]:
        return int(found["hex"], 16)
    return int(found["octal"], 8) if found["octal"] else int(found["decimal"])
