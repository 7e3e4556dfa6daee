"""Pods and volumes as the kubelet sees them: the fields that it honours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from lightkube.models import core_v1 as models
from lightkube.resources import core_v1


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
    """A key of a ConfigMap or Secret."""

    store: Store
    name: str
    key: str
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    """An environment variable: its value as written, or where it comes from."""

    name: str
    value: str = ""
    reference: KeyReference | None = None
    field_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMount:
    """Where a container sees a volume.

    ``shares_mounts`` is so when what the container mounts there is to be seen by the node, and the reverse.
    """

    volume: str
    path: str
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
    env: tuple[EnvVar, ...] = ()
    mounts: tuple[VolumeMount, ...] = ()
    identity: Identity = field(default_factory=Identity)
    read_only_root: bool = False
    message_path: str = "/dev/termination-log"
    message_from_logs: bool = False
    ports: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    readiness: Probe | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyDir:
    """A directory that lives as long as the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Keys of a ConfigMap or Secret as files: paths of files by keys, or each key under its own name."""

    store: Store
    name: str
    paths: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
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
    """Files from several sources in one volume."""

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


VolumeSource = EmptyDir | Projected | HostPath | Nfs | ClaimSource | Unsupported


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
    node: str = ""
    service_account: str = "default"
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    identity: Identity = field(default_factory=Identity)
    active_seconds: float | None = None
    grace_seconds: float = 30.0
    deleting: bool = False
    phase: Phase = Phase.PENDING

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


def read_pod(found: core_v1.Pod) -> Pod:
    """The pod."""
    meta = found.metadata or core_v1.Pod().metadata
    spec = found.spec or models.PodSpec(containers=[])
    status = found.status or models.PodStatus()
    security = spec.securityContext or models.PodSecurityContext()
    grace = spec.terminationGracePeriodSeconds
    if meta is not None and meta.deletionGracePeriodSeconds is not None:
        grace = meta.deletionGracePeriodSeconds
    return Pod(
        namespace=(meta and meta.namespace) or "",
        name=(meta and meta.name) or "",
        uid=(meta and meta.uid) or "",
        version=(meta and meta.resourceVersion) or "",
        node=spec.nodeName or "",
        service_account=spec.serviceAccountName or "default",
        restart_policy=RestartPolicy(spec.restartPolicy or "Always"),
        init_containers=tuple(_read_container(item) for item in spec.initContainers or ()),
        containers=tuple(_read_container(item) for item in spec.containers),
        volumes=tuple(Volume(name=item.name, source=_read_source(item)) for item in spec.volumes or ()),
        identity=Identity(uid=security.runAsUser, gid=security.runAsGroup),
        active_seconds=spec.activeDeadlineSeconds,
        grace_seconds=30.0 if grace is None else float(grace),
        deleting=meta is not None and meta.deletionTimestamp is not None,
        phase=Phase(status.phase or "Pending"),
    )


def read_bound(volume: core_v1.PersistentVolume) -> Nfs | Csi | Unsupported:
    """Where the data of a PersistentVolume lies."""
    spec = volume.spec or models.PersistentVolumeSpec()
    if spec.csi is not None:
        return Csi(
            driver=spec.csi.driver,
            handle=spec.csi.volumeHandle,
            volume=(volume.metadata and volume.metadata.name) or "",
            access_mode=(spec.accessModes or ["ReadWriteOnce"])[0],
            fs_type=spec.csi.fsType or "",
            attributes=MappingProxyType(dict(spec.csi.volumeAttributes or {})),
            options=tuple(spec.mountOptions or ()),
        )
    if spec.nfs is None:
        return Unsupported(kind="a PersistentVolume that is neither NFS nor CSI")
    return Nfs(
        server=spec.nfs.server,
        path=spec.nfs.path,
        read_only=bool(spec.nfs.readOnly),
        options=tuple(spec.mountOptions or ()),
    )


def _read_container(found: models.Container) -> Container:
    security = found.securityContext or models.SecurityContext()
    return Container(
        name=found.name,
        image=found.image or "",
        command=tuple(found.command or ()),
        args=tuple(found.args or ()),
        env=tuple(_read_env(item) for item in found.env or ()),
        mounts=tuple(
            VolumeMount(
                volume=item.name,
                path=item.mountPath,
                read_only=bool(item.readOnly),
                shares_mounts=item.mountPropagation == "Bidirectional",
            )
            for item in found.volumeMounts or ()
        ),
        identity=Identity(uid=security.runAsUser, gid=security.runAsGroup),
        read_only_root=bool(security.readOnlyRootFilesystem),
        message_path=found.terminationMessagePath or "/dev/termination-log",
        message_from_logs=found.terminationMessagePolicy == "FallbackToLogsOnError",
        ports=MappingProxyType({item.name: item.containerPort for item in found.ports or () if item.name}),
        readiness=_read_probe(found.readinessProbe),
    )


def _read_probe(found: models.Probe | None) -> Probe | None:
    """The probe if it asks over HTTP; others are not done."""
    asks = found and found.httpGet
    if found is None or not asks:
        return None
    return Probe(
        port=str(asks.port),
        path=asks.path or "/",
        host=asks.host or "",
        scheme=(asks.scheme or "HTTP").lower(),
        delay_seconds=found.initialDelaySeconds or 0,
        period_seconds=found.periodSeconds or 10,
        timeout_seconds=found.timeoutSeconds or 1,
        successes=found.successThreshold or 1,
        failures=found.failureThreshold or 3,
    )


def _read_env(found: models.EnvVar) -> EnvVar:
    source = found.valueFrom
    if source is None:
        return EnvVar(name=found.name, value=found.value or "")
    if source.fieldRef is not None:
        return EnvVar(name=found.name, field_path=source.fieldRef.fieldPath)
    store = Store.CONFIG_MAP if source.configMapKeyRef else Store.SECRET
    key = source.configMapKeyRef or source.secretKeyRef
    if key is None:
        return EnvVar(name=found.name)
    reference = KeyReference(store=store, name=key.name or "", key=key.key, optional=bool(key.optional))
    return EnvVar(name=found.name, reference=reference)


def _read_source(found: models.Volume) -> VolumeSource:
    if found.emptyDir is not None:
        return EmptyDir()
    if found.persistentVolumeClaim is not None:
        claim = found.persistentVolumeClaim
        return ClaimSource(claim_name=claim.claimName, read_only=bool(claim.readOnly))
    if found.nfs is not None:
        return Nfs(server=found.nfs.server, path=found.nfs.path, read_only=bool(found.nfs.readOnly))
    if found.hostPath is not None:
        return HostPath(path=found.hostPath.path, kind=found.hostPath.type or "")
    if found.projected is not None or found.secret is not None:
        return _read_files(found.projected, found.secret)
    given = [kind for kind, value in found.to_dict().items() if kind != "name" and value is not None]
    return Unsupported(kind=given[0] if given else "empty")


def _read_files(
    projected: models.ProjectedVolumeSource | None, secret: models.SecretVolumeSource | None
) -> Projected:
    if projected is None:
        name, optional = (secret and secret.secretName) or "", bool(secret and secret.optional)
        return Projected(sources=(Files(store=Store.SECRET, name=name, optional=optional),))
    sources = [_read_projection(item) for item in projected.sources or ()]
    mode = 0o644 if projected.defaultMode is None else projected.defaultMode
    return Projected(sources=tuple(source for source in sources if source is not None), mode=mode)


def _read_projection(found: models.VolumeProjection) -> Files | AccountToken | PodFields | None:
    """A source of the volume in which the API server puts the token of the service account."""
    if found.serviceAccountToken is not None:
        token = found.serviceAccountToken
        return AccountToken(
            path=token.path, seconds=token.expirationSeconds or 3600, audience=token.audience or ""
        )
    if found.configMap is not None:
        paths = {item.key: item.path for item in found.configMap.items or ()}
        return Files(store=Store.CONFIG_MAP, name=found.configMap.name or "", paths=MappingProxyType(paths))
    if found.downwardAPI is not None:
        fields = (item for item in found.downwardAPI.items or () if item.fieldRef)
        return PodFields(
            paths=MappingProxyType({item.path: item.fieldRef.fieldPath for item in fields if item.fieldRef})
        )
    return None
