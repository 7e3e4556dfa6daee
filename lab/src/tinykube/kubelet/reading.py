"""Pods of the Kubernetes API as the kubelet's values."""

from collections.abc import Iterable
from types import MappingProxyType

from lightkube.models import core_v1 as models
from lightkube.resources import core_v1

from tinykube.kubelet.pods import (
    AccountToken,
    ClaimSource,
    Container,
    Csi,
    EmptyDir,
    EnvVar,
    Files,
    HostPath,
    Identity,
    KeyReference,
    Nfs,
    Phase,
    Pod,
    PodFields,
    Probe,
    Projected,
    RestartPolicy,
    Store,
    Unsupported,
    Volume,
    VolumeMount,
    VolumeSource,
)


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
        labels=MappingProxyType(dict((meta and meta.labels) or {})),
        annotations=MappingProxyType(dict((meta and meta.annotations) or {})),
        node=spec.nodeName or "",
        service_account=spec.serviceAccountName or "default",
        restart_policy=RestartPolicy(spec.restartPolicy or "Always"),
        init_containers=tuple(_read_container(item) for item in spec.initContainers or ()),
        containers=tuple(_read_container(item) for item in spec.containers),
        volumes=tuple(Volume(name=item.name, source=_read_source(item)) for item in spec.volumes or ()),
        identity=Identity(uid=security.runAsUser, gid=security.runAsGroup),
        fs_group=security.fsGroup,
        supplemental_groups=tuple(security.supplementalGroups or ()),
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
        working_dir=found.workingDir or "",
        env=tuple(_read_env(item) for item in found.env or ()),
        env_from=tuple(_read_env_from(item) for item in found.envFrom or ()),
        mounts=tuple(
            VolumeMount(
                volume=item.name,
                path=item.mountPath,
                sub_path=item.subPath or "",
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
        liveness=_read_probe(found.livenessProbe),
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
    key, store = source.configMapKeyRef, Store.CONFIG_MAP
    secret = source.secretKeyRef
    if secret is not None:
        reference = KeyReference(
            store=Store.SECRET, name=secret.name or "", key=secret.key, optional=bool(secret.optional)
        )
        return EnvVar(name=found.name, reference=reference)
    if key is not None:
        reference = KeyReference(store=store, name=key.name or "", key=key.key, optional=bool(key.optional))
        return EnvVar(name=found.name, reference=reference)
    return EnvVar(name=found.name)


def _read_env_from(found: models.EnvFromSource) -> KeyReference:
    store = Store.SECRET if found.secretRef is not None else Store.CONFIG_MAP
    source = found.secretRef or found.configMapRef
    return KeyReference(
        store=store,
        name=(source and source.name) or "",
        optional=bool(source and source.optional),
        prefix=found.prefix or "",
    )


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
    files = _read_files(found) or _read_projected(found)
    if files is not None:
        return files
    given = [kind for kind, value in found.to_dict().items() if kind != "name" and value is not None]
    return Unsupported(kind=given[0] if given else "empty")


def _read_files(found: models.Volume) -> Files | None:
    if found.configMap is not None:
        config = found.configMap
        return _files(Store.CONFIG_MAP, config.name, config.items, config.defaultMode, config.optional)
    if found.secret is not None:
        secret = found.secret
        return _files(Store.SECRET, secret.secretName, secret.items, secret.defaultMode, secret.optional)
    return None


def _read_projected(found: models.Volume) -> Projected | Unsupported | None:
    fields = found.downwardAPI
    if fields is not None:
        return Projected(sources=(_fields(fields.items),), mode=_mode(fields.defaultMode))
    if found.projected is None:
        return None
    sources = [_read_projection(item) for item in found.projected.sources or ()]
    known = tuple(source for source in sources if source is not None)
    if len(known) < len(sources):
        return Unsupported(kind="projected, of certificates")
    return Projected(sources=known, mode=_mode(found.projected.defaultMode))


def _read_projection(found: models.VolumeProjection) -> Files | AccountToken | PodFields | None:
    if found.serviceAccountToken is not None:
        token = found.serviceAccountToken
        return AccountToken(
            path=token.path, seconds=token.expirationSeconds or 3600, audience=token.audience or ""
        )
    if found.configMap is not None:
        config = found.configMap
        return _files(Store.CONFIG_MAP, config.name, config.items, None, config.optional)
    if found.secret is not None:
        secret = found.secret
        return _files(Store.SECRET, secret.name, secret.items, None, secret.optional)
    return None if found.downwardAPI is None else _fields(found.downwardAPI.items)


def _fields(items: Iterable[models.DownwardAPIVolumeFile] | None) -> PodFields:
    paths = {item.path: item.fieldRef.fieldPath for item in items or () if item.fieldRef}
    return PodFields(paths=MappingProxyType(paths))


def _files(
    store: Store,
    name: str | None,
    items: Iterable[models.KeyToPath] | None,
    mode: int | None,
    optional: bool | None,
) -> Files:
    return Files(
        store=store,
        name=name or "",
        paths=MappingProxyType({item.key: item.path for item in items or ()}),
        mode=_mode(mode),
        optional=bool(optional),
    )


def _mode(given: int | None) -> int:
    return 0o644 if given is None else given
