"""Pods as the kubelet sees them: the fields that it honours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class RestartPolicy(StrEnum):
    """When an ended container is started again."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class Phase(StrEnum):
    """``status.phase`` of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        """Whether it stays so."""
        return self in {Phase.SUCCEEDED, Phase.FAILED}


class Store(StrEnum):
    """The two kinds of objects that hold settings and files for pods."""

    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105 - the name of a kind


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReference:
    """A key of a ConfigMap or Secret; without ``key`` all of it."""

    store: Store
    name: str
    key: str = ""
    optional: bool = False
    prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    """An environment variable: its value as written, or where it comes from."""

    name: str
    value: str = ""
    reference: KeyReference | None = None
    field_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMount:
    """Where a container sees a volume, or a path inside it.

    ``shares_mounts`` is so when what the container mounts there is to be seen by the node, and the reverse.
    """

    volume: str
    path: str
    sub_path: str = ""
    read_only: bool = False
    shares_mounts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A question over HTTP; ``port`` is a number or the name of a port of the container."""

    port: str
    path: str = "/"
    host: str = ""
    scheme: str = "http"
    delay_seconds: float = 0
    period_seconds: float = 10
    timeout_seconds: float = 1
    successes: int = 1
    failures: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A user and group; None means that nothing was said."""

    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container of a pod."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[KeyReference, ...] = ()
    mounts: tuple[VolumeMount, ...] = ()
    identity: Identity = field(default_factory=Identity)
    read_only_root: bool = False
    message_path: str = "/dev/termination-log"
    message_from_logs: bool = False
    ports: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    readiness: Probe | None = None
    liveness: Probe | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyDir:
    """A directory that lives as long as the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The keys of a ConfigMap or Secret as files; ``paths`` names the wanted ones and their files."""

    store: Store
    name: str
    paths: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    mode: int = 0o644
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountToken:
    """A token of the pod's service account, in a file; an empty audience is the API server itself."""

    path: str
    seconds: int = 3600
    audience: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFields:
    """Fields of the pod, each in a file: field paths by the paths of the files."""

    paths: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """Files from several sources in one volume; their own modes do not count."""

    sources: tuple[Files | AccountToken | PodFields, ...]
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """A path of the machine; ``kind`` is what must be there, or is to be made."""

    path: str
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nfs:
    """An exported directory of an NFS server; ``options`` are those of mount(8)."""

    server: str
    path: str
    read_only: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Csi:
    """What a PersistentVolume says of the driver that mounts it; ``volume`` is its name."""

    driver: str
    handle: str
    volume: str
    access_mode: str = "ReadWriteOnce"
    fs_type: str = ""
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSource:
    """A claim of the pod's namespace."""

    claim_name: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """A kind of volume that this kubelet does not have."""

    kind: str


VolumeSource = EmptyDir | Files | Projected | HostPath | Nfs | ClaimSource | Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume of a pod."""

    name: str
    source: VolumeSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod; ``grace_seconds`` is how long its processes may take to end once it is being deleted."""

    namespace: str
    name: str
    uid: str
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    node: str = ""
    service_account: str = "default"
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    identity: Identity = field(default_factory=Identity)
    fs_group: int | None = None
    supplemental_groups: tuple[int, ...] = ()
    active_seconds: float | None = None
    grace_seconds: float = 30.0
    deleting: bool = False
    phase: Phase = Phase.PENDING

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name
