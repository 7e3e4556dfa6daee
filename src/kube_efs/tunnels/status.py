"""The status of a node's tunnels, as a value and as the JSON that nodes publish."""

import json
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Final

import msgspec

from kube_efs.model.errors import InvalidValue

DENIED: Final = "its policy denies clients without an IAM identity, or without an access point"
DENIED_REMEDY: Final = (
    "mount it by CSI volumes with the option iam or an access point, or let its policy allow ClientMount,"
    " ClientWrite and ClientRootAccess to the principal *"
)


class TunnelState(StrEnum):
    """The state of a tunnel."""

    UP = "up"
    DOWN = "down"
    STARTING = "starting"
    REJECTED = "rejected"
    NO_MOUNT_TARGET = "no mount target"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelStatus:
    """One tunnel of one node. Empty strings mean "not known".

    ``address`` is the mount target that the last connection reached, before the first one the one that is
    tried first. ``failed_over`` says that a nearer one exists. ``reason`` says why it is not up, or why its
    certificate is not renewed. ``denied``, with the state ``rejected``, marks a tunnel without identity that
    EFS lets nobody use: it is not a failure, because the policy of the file system requires this.
    ``leaving`` marks a tunnel that left the ConfigMap, or has no holder, and stays until its connections are
    closed; ``connections`` does not include the agent's own probes. ``sent_bytes`` went from mounts to the
    mount target, and ``received_bytes`` back, probes included, since the agent started; None is unknown.
    A tunnel on demand has a ``name`` of its own, because a file system can have several, ``holders``, and
    the expiry time of its client certificate. ``stunnel_pid``, or ``relay_pid`` if the kernel encrypts it,
    is the process that listens for it.
    """

    file_system_id: str
    port: int
    state: TunnelState
    reason: str = ""
    address: str = ""
    subnet_id: str = ""
    zone: str = ""
    failed_over: bool = False
    leaving: bool = False
    # Not a state of its own: readers of earlier versions know only the states above.
    denied: bool = False
    connections: int = 0
    sent_bytes: int | None = None
    received_bytes: int | None = None
    probe_seconds: float | None = None
    tls_version: str = ""
    cipher: str = ""
    peer: str = ""
    on_demand: bool = False
    name: str = ""
    access_point_id: str = ""
    holders: int = 0
    certificate_ends: str = ""
    stunnel_pid: int | None = None
    relay_pid: int | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it does not work although it must; a tunnel that is starting has not failed yet."""
        return not self.denied and self.state not in {TunnelState.UP, TunnelState.STARTING}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationStatus:
    """The location of one node, and the source of each part; an unknown zone is empty."""

    region: str
    region_source: str
    zone: str = ""
    zone_source: str = ""

    def __str__(self) -> str:
        zone = f"zone {self.zone} ({self.zone_source})" if self.zone else "zone unknown"
        return f"region {self.region} ({self.region_source}), {zone}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelsStatus:
    """All tunnels of one node, and its other problems; agents of earlier versions report no ``location``.

    ``stunnel_pid`` is the first of its stunnels, the only one in earlier versions; None if none runs.
    ``relay_pid`` is the relay, and ``leaving_relay_pids`` are earlier ones, which end with their last
    connection. ``data_plane`` serves new tunnels, and ``data_plane_reason`` is why ``auto`` did not choose
    the kernel's. Agents of versions without a relay report none of these.
    """

    tunnels: tuple[TunnelStatus, ...] = ()
    problems: tuple[str, ...] = ()
    stunnel_pid: int | None = None
    relay_pid: int | None = None
    leaving_relay_pids: tuple[int, ...] = ()
    data_plane: str = ""
    data_plane_reason: str = ""
    location: LocationStatus | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What is unusual and not a problem, as text."""
        reason = self.data_plane_reason
        data_plane = (f"new tunnels use {self.data_plane}: {reason}",) if reason else ()
        leaving = (f"relay {pid} ends with its last connection" for pid in self.leaving_relay_pids)
        return (*data_plane, *leaving)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document(TunnelsStatus):
    time: str


_FIELDS: Final = tuple(one.name for one in fields(TunnelStatus))
_DEFAULTS: Final = tuple(one.default for one in fields(TunnelStatus))
_VALUES: Final = attrgetter(*_FIELDS)


def render_status(status: TunnelsStatus, *, time: str = "") -> str:
    """The JSON document; ``time`` says when it was true.

    It contains no fields of tunnels that have their default value: etcd stores each status of each node.
    """
    tunnels = [
        {
            name: value
            for name, value, default in zip(_FIELDS, _VALUES(tunnel), _DEFAULTS, strict=True)
            if value != default
        }
        for tunnel in status.tunnels
    ]
    # asdict copies each value: for a thousand tunnels, this took a quarter of a second.
    others = asdict(replace(status, tunnels=()))
    return json.dumps({"time": time, **others, "tunnels": tunnels}, sort_keys=True)


def parse_status(text: str) -> tuple[TunnelsStatus, str]:
    """The status in a document, and its time; raises InvalidValue for another document.

    Unknown fields are ignored: the agent of a node may be newer than the reader.
    """
    try:
        found = msgspec.json.decode(text, type=_Document)
    except msgspec.DecodeError as error:
        raise InvalidValue("is not a status of tunnels", field="tunnels.json", value=text[:80]) from error
    known = {one.name: getattr(found, one.name) for one in fields(TunnelsStatus)}
    return TunnelsStatus(**known), found.time
