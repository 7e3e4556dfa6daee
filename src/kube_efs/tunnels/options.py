"""The options of the tunnel agent."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from kube_efs.aws.credential_sources import CredentialOptions
from kube_efs.model.efs.ids import Region
from kube_efs.model.efs.partitions import partition_of
from kube_efs.tunnels.authorities import hashed_directory
from kube_efs.tunnels.data_plane import STUNNEL, DataPlaneChoice
from kube_efs.tunnels.mount_targets import NodeLocation
from kube_efs.tunnels.reservations import PortRange
from kube_efs.tunnels.sockets.detection import IdlePolicy
from kube_efs.tunnels.status import LocationStatus

# The controller assigns ports from 20490 on to file systems, of which an account has at most 1,000 unless AWS
# raises the limit. Node ports and the ports of outgoing connections are above 30000.
ON_DEMAND_PORTS: Final = PortRange(first=22049, last=23048)
_SOURCE_MAX: Final = 100
# How many readings in a row, without a connection, close a lingering tunnel.
_READINGS_UNTIL_CLOSED: Final = 3
AMAZON_CA_FILE: Final = Path("/etc/amazon/efs/efs-utils.crt")
# Of Amazon Linux and RHEL, as in efs-utils, and where the operator mounts the authorities of an OpenShift
# cluster; of Debian, and so of the image.
SYSTEM_CA_FILES: Final = (
    Path("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"),
    Path("/etc/ssl/certs/ca-certificates.crt"),
)


def relay_socket(conf_path: Path) -> Path:
    """The control socket of the relay beside this configuration.

    Not in the state directory, which belongs to the node: it must lead to a process of this container.
    """
    return conf_path.with_suffix(".relay.sock")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInfo:
    """Which program connects, for the statistics of EFS."""

    source: str
    version: str

    @classmethod
    def of(cls, source: str, version: str) -> Self:
        """The information; a source that is empty or longer than 100 characters becomes ``unknown``."""
        return cls(source=source if 0 < len(source) <= _SOURCE_MAX else "unknown", version=version)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandOptions:
    """Settings of the tunnels on demand.

    The agent listens on ``socket_path``. ``node`` is the host name for certificates, ``credentials``
    configure how identities are found. A call that takes longer than ``ensure_timeout_seconds`` fails. A
    holder that two reconciliations ``orphan_seconds`` apart do not contain is removed.
    """

    socket_path: Path
    node: str
    credentials: CredentialOptions
    client_info: ClientInfo
    ports: PortRange = ON_DEMAND_PORTS
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    # A kubelet waits two minutes. The call must end earlier, so that the user gets the reason.
    ensure_timeout_seconds: float = 20.0
    # Less than the pause between two reconciliations of ``kube-efs node``, so that two in a row suffice.
    orphan_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelOptions:
    """Settings of one node's tunnels.

    ``data_plane`` serves new tunnels. ``stunnel_path`` None takes the first stunnel in the usual places;
    ``fips`` is its FIPS mode; ``state_dir`` None is the directory of ``conf_path``; ``dns_suffix`` and
    ``ca_file`` None are those of each region. ``shown_location`` is a part of the status. ``system_ca_file``
    has the authorities that this machine trusts. ``hashed_directories`` are the directories of authorities
    that can be used instead of files (``authorities``). Mounts can name files in ``ca_directory``; None
    allows no file.

    Mount targets and tunnels are checked each ``probe_interval_seconds``. A process that has accepted no
    connection for ``stall_seconds`` must accept again, or it is replaced.
    """

    region: Region
    dns_suffix: str | None = None
    location: NodeLocation = field(default_factory=NodeLocation)
    shown_location: LocationStatus | None = None
    data_plane: DataPlaneChoice = STUNNEL
    stunnel_path: Path | None = None
    fips: bool = False
    conf_path: Path = Path("/tmp/stunnel.conf")  # noqa: S108 - the older system's default; inside the pod
    ca_file: Path | None = None
    state_dir: Path | None = None
    system_ca_file: Path = SYSTEM_CA_FILES[0]
    hashed_directories: frozenset[Path] = frozenset()
    ca_directory: Path | None = None
    probe_interval_seconds: float = 10.0
    # A probe waits while stunnel tries one mount target after the other.
    probe_timeout_seconds: float = 8.0
    connect_timeout_seconds: float = 2.0
    stall_seconds: float = 30.0
    retry_seconds: float = 5.0
    log_size_bytes: int = 1024 * 1024
    on_demand: OnDemandOptions | None = None

    def authorities(self, region: Region) -> Path:
        """The file of the certificate authorities for mount targets in the region."""
        own = partition_of(region).has_own_authorities
        return self.ca_file or (self.system_ca_file if own else AMAZON_CA_FILE)

    def hashed_directory(self, ca_file: Path) -> Path | None:
        """The directory with the authorities of this file, if there is one."""
        directory = hashed_directory(ca_file)
        return directory if directory in self.hashed_directories else None

    @property
    def idle(self) -> IdlePolicy:
        """When a lingering tunnel can be closed."""
        pauses = _READINGS_UNTIL_CLOSED - 1
        return IdlePolicy(seconds=pauses * self.probe_interval_seconds, readings=_READINGS_UNTIL_CLOSED)

    @property
    def directory(self) -> Path:
        """The directory of the log of stunnel and of the state of this agent."""
        return self.state_dir or self.conf_path.parent

    @property
    def log_path(self) -> Path:
        """The log of stunnel; the part before the last rotation has ``.1`` at its end."""
        return self.directory / f"{self.conf_path.stem}.log"

    @property
    def relay_socket(self) -> Path:
        """The control socket of the relay."""
        return relay_socket(self.conf_path)

    @property
    def relay_log_path(self) -> Path:
        """The log of the relay; the part before the last rotation has ``.1`` at its end."""
        return self.directory / f"{self.conf_path.stem}.relay.log"

    @property
    def state_path(self) -> Path:
        """The stored targets."""
        return self.directory / f"{self.conf_path.stem}.targets.json"

    @property
    def reservations_path(self) -> Path:
        """The reservations of tunnels on demand."""
        # The name stays: after an upgrade, the agent must find the file of the earlier version.
        return self.directory / f"{self.conf_path.stem}.demands.json"

    @property
    def certificates_path(self) -> Path:
        """The directory of the client certificates."""
        return self.directory / f"{self.conf_path.stem}.certificates"
