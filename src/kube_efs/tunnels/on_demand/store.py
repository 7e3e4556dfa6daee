"""The reservations of tunnels on demand on the node's disk: they must outlive the agent, as mounts do.

The file is JSON with a version. An entry that cannot be read affects no other entry: it is written back as
it was found, because a newer version may have written it, its port is not reserved again, and the problem is
reported. That includes an entry whose spec has a part that this version does not know, because such a part
distinguishes the tunnel from others. Fields of a spec that have their default are not written, so a field
that a later version adds affects only the tunnels that use it.

A second file has the state before the last change. It is used if the first one is missing, or cannot be read
at all.

The names of the fields in the file are those of ``Reservation`` and ``TunnelSpec``. A node is upgraded in
place, so renaming a field there would lose the ports of all mounts.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
import structlog

from kube_efs.model.errors import InvalidValue
from kube_efs.tunnels.changes import Incremental
from kube_efs.tunnels.files import keep_previous, previous_path, write_atomically
from kube_efs.tunnels.reservations import Reservation, Reservations

log = structlog.get_logger()

_VERSION: Final = 1


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    version: int
    tunnels: list[msgspec.Raw]


class _PortOnly(msgspec.Struct):
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReservations:
    """The content of the file.

    ``unreadable`` are the entries that this version cannot read, as they were found; ``unreadable_ports`` are
    their ports. ``problems`` describe what could not be read.
    """

    reservations: Reservations = field(default_factory=Reservations)
    unreadable: tuple[bytes, ...] = ()
    unreadable_ports: frozenset[int] = frozenset()
    problems: tuple[str, ...] = ()


def new_entries() -> Incremental[Reservation, bytes]:
    """The entries for ``save_reservations``, of a writer that writes one state after the other."""
    return Incremental(_encode)


def save_reservations(
    path: Path,
    reservations: Reservations,
    unreadable: Iterable[bytes] = (),
    *,
    entries: Incremental[Reservation, bytes] | None = None,
) -> None:
    """Write the tunnels durably; raises OSError, and then the file is unchanged.

    With the ``entries`` of the last call, only changed ones are encoded.
    """
    tunnels = (entries or new_entries()).results(reservations.tunnels)
    state = _File(version=_VERSION, tunnels=[msgspec.Raw(one) for one in (*tunnels, *unreadable)])
    if _read(path)[0]:
        keep_previous(path)
    write_atomically(path, msgspec.json.encode(state).decode())


def load_reservations(path: Path) -> StoredReservations:
    """The stored reservations, none without a file. Raises nothing, but reports all problems."""
    found, problem = _read(path)
    if found is None:
        found, _ = _read(previous_path(path))
        # No crash leaves the second file alone, but people remove files.
        problem = problem or (f"{path} is missing" if found else "")
        if problem:
            log.error("on-demand-tunnels-unreadable", path=str(path), reason=problem)
    problems = [problem] if problem else []
    if found is None:
        return StoredReservations(problems=tuple(problems))
    if found.version != _VERSION:
        log.warning("on-demand-tunnels-of-another-version", path=str(path), version=found.version)
    tunnels: dict[str, Reservation] = {}
    ports: set[int] = set()
    unreadable: list[bytes] = []
    for raw in found.tunnels:
        try:
            tunnel = msgspec.json.decode(raw, type=Reservation)
            given = msgspec.json.decode(raw)["spec"]
            if unknown := next(_unknown_parts(given, msgspec.to_builtins(tunnel.spec), "spec"), None):
                raise InvalidValue("is not known to this version", field=unknown)
            # With one port twice, stunnel would serve no tunnel at all.
            if tunnel.port in ports or tunnel.name in tunnels:
                raise InvalidValue("is given twice", field="port or spec", value=tunnel.port)
            tunnels[tunnel.name] = tunnel
            ports.add(tunnel.port)
        except (msgspec.MsgspecError, InvalidValue) as error:
            log.warning("on-demand-tunnel-unreadable", path=str(path), reason=str(error))
            unreadable.append(bytes(raw))
            problems.append(f"a tunnel in {path} cannot be read: {error}")
    return StoredReservations(
        reservations=Reservations(tunnels=MappingProxyType(tunnels)),
        unreadable=tuple(unreadable),
        unreadable_ports=frozenset(_ports(unreadable)),
        problems=tuple(problems),
    )


def _read(path: Path) -> tuple[_File | None, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, f"{path} cannot be read: {error}"


def _unknown_parts(found: object, known: object, name: str) -> Iterator[str]:
    """The parts that decoding has ignored; null says nothing, so it does not count."""
    if isinstance(found, dict) and isinstance(known, dict):
        for key, value in found.items():
            if key in known:
                yield from _unknown_parts(value, known[key], f"{name}.{key}")
            elif value is not None:
                yield f"{name}.{key}"
    elif isinstance(found, list) and isinstance(known, list) and any(found[len(known) :]):
        yield name


def _encode(tunnel: Reservation) -> bytes:
    entry = {**{one.name: getattr(tunnel, one.name) for one in fields(tunnel)}, "spec": tunnel.spec.given}
    return msgspec.json.encode(entry, order="deterministic")


def _ports(entries: Iterable[bytes]) -> Iterable[int]:
    for entry in entries:
        with suppress(msgspec.MsgspecError):
            yield msgspec.json.decode(entry, type=_PortOnly).port
