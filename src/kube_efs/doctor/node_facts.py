"""The facts from a node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from kube_efs.tunnels.probe import ProbeResult
from kube_efs.tunnels.status import TunnelsStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredTunnel:
    """A service of a stunnel or of the relay; ``addresses`` are of port 2049, names or numbers."""

    name: str
    port: int
    addresses: tuple[str, ...]
    check_host: str
    ca_file: Path


class HandshakeOutcome(StrEnum):
    """The result of a TLS handshake with a mount target."""

    DONE = "done"
    NOT_CONNECTED = "not connected"
    WRONG_NAME = "wrong name"
    EXPIRED = "expired"
    NOT_TRUSTED = "not trusted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """A handshake with one mount target; ``names`` are those of its certificate, if they are known."""

    address: str
    outcome: HandshakeOutcome
    reason: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelFacts:
    """A tunnel, the NULL call through it, and handshakes with its mount targets."""

    tunnel: ConfiguredTunnel
    listening: bool
    null_call: ProbeResult
    handshakes: tuple[Handshake, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessHealth:
    """The health of a process of kube-efs; ``unreachable`` is why it did not answer."""

    name: str
    url: str
    unreachable: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaFile:
    """The file of certificate authorities; ``problem`` is why it is not usable."""

    path: Path
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackMount:
    """An NFS mount from this node's own address, which is a mount through a tunnel."""

    mount_point: Path
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All facts from the node; ``configuration`` is the path of ``stunnel.conf``.

    ``tunnels`` are those of all stunnels and the relay; None means that there are neither. ``kernel`` are
    lines of the kernel's log, oldest first, and ``booleans`` SELinux's where it is enforced; both None when
    they could not be read.
    """

    name: str
    configuration: Path
    tunnels: tuple[TunnelFacts, ...] | None = None
    ca_files: tuple[CaFile, ...] = ()
    listening: frozenset[int] | None = None
    mounts: tuple[LoopbackMount, ...] = ()
    processes: tuple[ProcessHealth, ...] = ()
    status: TunnelsStatus | None = None
    kernel: tuple[str, ...] | None = None
    booleans: Mapping[str, bool] | None = field(default_factory=lambda: MappingProxyType({}))
