"""A claim and a volume for the root of each file system; worker pods mount them.

Contract of openshift-efs-stunnel: both have the name ``efs-stunnel-<fs id>`` and a class that does not exist.
A secret key binds them to each other.
"""

import secrets
import string
from collections.abc import Awaitable, Callable, Collection

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.types import PatchType

from kube_efs.kube.building import build_claim, build_volume
from kube_efs.kube.errors import translated
from kube_efs.kube.reading import read_claim, read_volume
from kube_efs.model.claims import Claim, ReclaimPolicy
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import KubeAlreadyExists, KubeError, KubeNotFound
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_LABEL, ROOT_CLASS, ROOT_KEY_LABEL, root_name
from kube_efs.model.volumes import LOOPBACK, ClaimReference, NfsSource, Volume
from kube_efs.provisioning.volume_index import VolumeIndex

log = structlog.get_logger(__name__)

_BETA_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
_ACCESS_MODES = ("ReadWriteMany",)
_STORAGE = "1Gi"
_KEY_LENGTH = 10


class RootVolumes:
    """Reconciles root claims and volumes with the targets; every call raises KubeError.

    Without ``wanted``, there are none: worker pods mount with the CSI driver. ``release`` deletes the pods of
    a root claim before its deletion.
    """

    def __init__(
        self,
        client: AsyncClient,
        index: VolumeIndex,
        *,
        namespace: str,
        provisioner: str,
        release: Callable[[str], Awaitable[None]],
        wanted: bool = True,
    ) -> None:
        self.wanted = wanted
        self._client = client
        self._index = index
        self._namespace = namespace
        self._provisioner = provisioner
        self._release = release

    async def follow(self, targets: TunnelTargets, unclear: Collection[FileSystemId] = ()) -> None:
        """Create missing objects, repair changed ones, and delete those of deleted file systems.

        Objects of ``unclear`` file systems are not changed. An error of one file system is raised after the
        work on the others.
        """
        if not self.wanted:
            targets, unclear = TunnelTargets(), ()
        claims = await self._claims()
        failures = []
        for file_system_id, target in targets.targets.items():
            try:
                await self._ensure(target, claims.get(root_name(file_system_id)))
            except KubeError as error:
                log.warning("root-not-kept", file_system=file_system_id, reason=str(error))
                failures.append(error)
        wanted = {root_name(file_system_id) for file_system_id in (*targets.targets, *unclear)}
        await self._delete_others(claims, wanted)
        if failures:
            raise failures[0]

    async def _claims(self) -> dict[str, Claim]:
        with translated("root claims"):
            listing = self._client.list(PersistentVolumeClaim, namespace=self._namespace)
            claims = [read_claim(item.to_dict()) async for item in listing]
        return {claim.name: claim for claim in claims if ROOT_KEY_LABEL in (claim.match_labels or {})}

    async def _ensure(self, target: TunnelTarget, claim: Claim | None) -> None:
        volume = self._index.volumes.get(root_name(target.file_system_id))
        if claim is None:
            claim = await self._create_claim(target.file_system_id, volume)
        if claim.deleting:
            return
        wanted = self._volume(target, claim)
        if volume is None:
            await self._create_volume(wanted)
        elif volume.deleting:
            # It never binds again, and is deleted after its claim. Then a new one is created.
            return
        elif not _agrees(volume, wanted):
            await self._repair(wanted)

    async def _create_claim(self, file_system_id: FileSystemId, volume: Volume | None) -> Claim:
        # A volume that exists keeps its key, so that it can bind to the new claim.
        key = volume.labels.get(ROOT_KEY_LABEL) if volume else None
        body = build_claim(
            namespace=self._namespace,
            name=root_name(file_system_id),
            storage_class=ROOT_CLASS,
            match_labels={FILE_SYSTEM_LABEL: file_system_id, ROOT_KEY_LABEL: key or _new_key()},
            annotations={_BETA_PROVISIONER: self._provisioner},
            access_modes=_ACCESS_MODES,
            storage=_STORAGE,
        )
        with translated(f"root claim {root_name(file_system_id)}"):
            created = await self._client.create(body)
        log.info("root-claim-created", file_system=file_system_id)
        return read_claim(created.to_dict())

    def _volume(self, target: TunnelTarget, claim: Claim) -> Volume:
        return Volume(
            name=root_name(target.file_system_id),
            reclaim_policy=ReclaimPolicy.RETAIN,
            storage_class=ROOT_CLASS,
            provisioned_by=self._provisioner,
            file_system_id=target.file_system_id,
            claim=ClaimReference(namespace=claim.namespace, name=claim.name, uid=claim.uid),
            nfs=NfsSource(server=LOOPBACK, path="/"),
            mount_options=(f"port={target.port}",),
            labels=claim.match_labels or {},
            access_modes=_ACCESS_MODES,
            capacity=_STORAGE,
        )

    async def _create_volume(self, wanted: Volume) -> None:
        try:
            with translated(f"root volume {wanted.name}"):
                created = await self._client.create(build_volume(wanted))
            self._index.put_volume(read_volume(created.to_dict()))
            log.info("root-volume-created", file_system=wanted.file_system_id)
        except KubeAlreadyExists:
            await self._repair(wanted)

    async def _repair(self, wanted: Volume) -> None:
        """Set the current claim and port of an existing volume, unless it is Terminating.

        Watches may not show its deletion yet, so it is read, and the change requires that version. Kubernetes
        binds no claim to a Terminating volume, and protects one that is Bound to an existing claim, so it
        would stay without end.
        """
        with translated(f"root volume {wanted.name}"):
            found = await self._client.get(PersistentVolume, wanted.name)
        meta = found.metadata
        if meta is None or meta.deletionTimestamp is not None:
            return
        body = build_volume(wanted).to_dict()
        # None removes the version of an earlier claim, which the patch would otherwise leave there.
        reference = {**body["spec"]["claimRef"], "resourceVersion": None}
        patch = {
            "metadata": {
                "resourceVersion": meta.resourceVersion,
                "labels": body["metadata"]["labels"],
                "annotations": body["metadata"]["annotations"],
            },
            "spec": {
                "claimRef": reference,
                "mountOptions": body["spec"]["mountOptions"],
                "persistentVolumeReclaimPolicy": str(ReclaimPolicy.RETAIN),
            },
        }
        with translated(f"root volume {wanted.name}"):
            repaired = await self._client.patch(
                PersistentVolume, wanted.name, patch, patch_type=PatchType.MERGE
            )
        self._index.put_volume(read_volume(repaired.to_dict()))
        log.info("root-volume-mended", file_system=wanted.file_system_id)

    async def _delete_others(self, claims: dict[str, Claim], wanted: set[str]) -> None:
        for name in claims.keys() - wanted:
            await self._release(name)
            await self._delete(PersistentVolumeClaim, name, self._namespace)
        for volume in list(self._index.volumes.values()):
            is_ours = volume.claim is not None and volume.claim.namespace == self._namespace
            is_root = volume.storage_class == ROOT_CLASS and volume.nfs is not None
            if is_root and is_ours and volume.name not in wanted:
                await self._delete(PersistentVolume, volume.name, None)

    async def _delete(
        self, kind: type[PersistentVolumeClaim] | type[PersistentVolume], name: str, namespace: str | None
    ) -> None:
        try:
            with translated(f"{kind.__name__} {name}"):
                if kind is PersistentVolumeClaim:
                    await self._client.delete(PersistentVolumeClaim, name, namespace=namespace)
                else:
                    await self._client.delete(PersistentVolume, name)
            log.info("root-deleted", kind=kind.__name__, name=name)
        except KubeNotFound:
            return


def _agrees(volume: Volume, wanted: Volume) -> bool:
    """Whether the volume has the wanted claim, key, port and reclaim policy."""
    return (
        volume.claim == wanted.claim
        and volume.mount_options == wanted.mount_options
        and all(volume.labels.get(key) == value for key, value in wanted.labels.items())
        and volume.reclaim_policy is ReclaimPolicy.RETAIN
    )


def _new_key() -> str:
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(_KEY_LENGTH))
