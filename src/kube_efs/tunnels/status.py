"""The state of a node's tunnels, as a value and as the JSON that nodes publish."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from kube_efs.model.errors import InvalidValue


class TunnelState(StrEnum):
    """What can be said of a tunnel in one word."""

    UP = "up"
    DOWN = "down"
    STARTING = "starting"
    REJECTED = "rejected"
    NO_MOUNT_TARGET = "no mount target"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelStatus:
    """One tunnel of one node. Empty strings mean "not known".

    ``address`` is the mount target that the last connection reached, before the first one the one that
    is tried first. ``failed_over`` says that a nearer one exists. ``reason`` says why it is not up, or why
    its certificate is not renewed. ``leaving`` marks a tunnel that is no longer asked for and stays until its
    connections are closed; ``connections`` leaves out the agent's own probes. A tunnel on demand has a
    ``name`` of its own, as there may be several for a file system, ``holders``, and a client certificate with
    its end.
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
    connections: int = 0
    probe_seconds: float | None = None
    tls_version: str = ""
    cipher: str = ""
    peer: str = ""
    on_demand: bool = False
    name: str = ""
    access_point_id: str = ""
    holders: int = 0
    certificate_ends: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelsStatus:
    """All tunnels of one node, and what is wrong apart from them."""

    tunnels: tuple[TunnelStatus, ...] = ()
    problems: tuple[str, ...] = ()
    stunnel_pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document(TunnelsStatus):
    time: str


_DOCUMENT = TypeAdapter(_Document)


def render_status(status: TunnelsStatus, *, time: str = "") -> str:
    """The JSON document; ``time`` says when it was true."""
    return json.dumps({"time": time, **asdict(status)}, sort_keys=True)


def parse_status(text: str) -> tuple[TunnelsStatus, str]:
    """The status of a document and its time; raises InvalidValue when it is none.

    Fields that this version does not know are left out, so that nodes may be newer than their reader.
    """
    try:
        found = _DOCUMENT.validate_json(text)
    except ValidationError as error:
        raise InvalidValue("is not a status of tunnels", field="tunnels.json", value=text[:80]) from error
    status = TunnelsStatus(tunnels=found.tunnels, problems=found.problems, stunnel_pid=found.stunnel_pid)
    return status, found.time
