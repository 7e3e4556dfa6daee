"""Reads and writes the objects of migrations in the Kubernetes API; everything raises KubeError."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lightkube import AsyncClient
from lightkube.generic_resource import GenericGlobalResource, GenericNamespacedResource, create_api_info
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.resources.storage_v1 import CSIDriver
from lightkube.types import PatchType

from kube_efs.kube.building import reservation_patch
from kube_efs.kube.deleting import delete_exactly
from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.kube.reading import read_claim, read_volume
from kube_efs.kube.volumes import VolumeStore
from kube_efs.migration.errors import MigrationRefused
from kube_efs.migration.journal import ANNOTATION, Journal, read_journal, write_journal
from kube_efs.migration.manifests import Manifest, plain_claim, same_claim
from kube_efs.migration.marks import KEPT, Mark, marking, read_mark
from kube_efs.migration.plan import Direction, Migration, MigrationState
from kube_efs.migration.steps import MigrationStep, Move, Seen
from kube_efs.model.claims import Claim, ReclaimPolicy
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import CONFIG_MAP_KEY, TunnelTargets, parse_targets
from kube_efs.model.errors import KubeDenied, KubeNotFound
from kube_efs.model.names import Names
from kube_efs.model.volumes import DRIVER, FINALIZER, Volume


# The client's own classes drop fields of newer versions of Kubernetes; these do not take their place there.
class VolumeManifest(GenericGlobalResource):
    """A PersistentVolume with all of its fields."""

    _api_info = create_api_info("", "v1", "PersistentVolume", "persistentvolumes")


class ClaimManifest(GenericNamespacedResource):
    """A PersistentVolumeClaim with all of its fields."""

    _api_info = create_api_info("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The claim and its volumes, and the journal; ``claim`` is the whole claim."""

    seen: Seen
    journal: Journal
    claim: Manifest | None


class MigrationStore:
    """The claims, volumes and pods of a cluster."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._volumes = VolumeStore(client)

    async def state(
        self, names: Names, namespace: str | None, servers: Mapping[str, FileSystemId]
    ) -> MigrationState:
        """All volumes, the claims of the namespace (None: of all), and the ports of tunnels."""
        with translated("volumes"):
            volumes = [dict(one) async for one in self._client.list(VolumeManifest, chunk_size=PAGE_SIZE)]
        with translated("claims"):
            found = self._client.list(ClaimManifest, namespace=namespace or "*", chunk_size=PAGE_SIZE)
            claims = {_key(one): dict(one) async for one in found}
        targets = await self._targets(names)
        return MigrationState(volumes=volumes, claims=claims, targets=targets, servers=servers)

    async def _targets(self, names: Names) -> TunnelTargets:
        try:
            with translated(f"ConfigMap {names.namespace}/{names.config_map}"):
                found = await self._client.get(ConfigMap, names.config_map, namespace=names.namespace)
        except KubeNotFound:
            return TunnelTargets()
        return parse_targets((found.data or {}).get(CONFIG_MAP_KEY, ""))[0]

    async def check_driver(self) -> None:
        """See that pods could mount CSI volumes; raises MigrationRefused. Who may not look is not kept."""
        try:
            with translated(f"CSIDriver {DRIVER}"):
                await self._client.get(CSIDriver, DRIVER)
        except KubeNotFound as error:
            raise MigrationRefused(
                "does not exist, so no pod could use the volumes",
                field="CSIDriver",
                value=DRIVER,
                remedy="install the CSI driver first, for example by kube-efs render --csi",
            ) from error
        except KubeDenied:
            return

    async def look(self, migration: Migration) -> Look:
        """The claim and its two volumes; raises MigrationRefused when a name belongs to another object."""
        # In this order, each direction sees the mark of the other one that was written before its own.
        target = await self._volume(migration.move.target)
        claim = await self._claim(migration)
        source = await self._volume(migration.move.source)
        is_forward = migration.direction is Direction.FORWARD
        nfs, csi = (source, target) if is_forward else (target, source)
        journal = migration.journal if csi is None else _journal_on(csi)
        _check_same(nfs, journal)
        seen = Seen(
            claim=read_claim(claim) if claim else None,
            source=read_volume(source) if source else None,
            target=read_volume(target) if target else None,
            claim_mark=read_mark(claim) if claim else None,
            source_mark=read_mark(source) if source else None,
            target_mark=read_mark(target) if target else None,
            users=await self._users(migration) if claim else (),
            recorded=claim is not None and same_claim(plain_claim(claim), journal.claim),
            policies_recorded=_policies(journal) == _policies(migration.journal),
            recorded_policy=journal.policy if is_forward else journal.nfs_policy,
        )
        return Look(seen=seen, journal=journal, claim=claim)

    async def _volume(self, name: str) -> Manifest | None:
        try:
            with translated(f"volume {name}"):
                return dict(await self._client.get(VolumeManifest, name))
        except KubeNotFound:
            return None

    async def _claim(self, migration: Migration) -> Manifest | None:
        try:
            with translated(f"claim {migration.namespace}/{migration.claim}"):
                found = await self._client.get(ClaimManifest, migration.claim, namespace=migration.namespace)
                return dict(found)
        except KubeNotFound:
            return None

    async def _users(self, migration: Migration) -> tuple[str, ...]:
        """The pods that refer to the claim, in any state: a pod that has ended also prevents its deletion."""
        with translated(f"pods of namespace {migration.namespace}"):
            found = self._client.list(Pod, namespace=migration.namespace, chunk_size=PAGE_SIZE)
            pods = [pod async for pod in found]
        return tuple(sorted(_name(pod) for pod in pods if migration.claim in _claims_of(pod)))

    async def take(self, step: MigrationStep, migration: Migration, look: Look) -> None:
        """Make the change to these objects as they were seen.

        Raises KubeConflict if one has changed since: the request may take effect minutes later, and then
        another step may be the right one.
        """
        move, seen = migration.move, look.seen
        match step:
            case MigrationStep.MAKE_TARGET:
                with translated(f"volume {move.target}"):
                    await self._client.create(VolumeManifest(**migration.target_volume))
            case MigrationStep.KEEP_SOURCE:
                await self._patch_volume(seen.source, _policy_patch(ReclaimPolicy.RETAIN, Mark.LEAVING))
            case MigrationStep.RECORD:
                await self._record(migration, look)
            case MigrationStep.MARK_CLAIM | MigrationStep.KEEP_CLAIM:
                mark = Mark.LEAVING if step is MigrationStep.MARK_CLAIM else None
                await self._mark_claim(seen.claim, mark)
            case MigrationStep.REMOVE_CLAIM:
                await self._remove_claim(seen.claim)
            case MigrationStep.MAKE_CLAIM:
                with translated(f"claim {move.namespace}/{move.claim}"):
                    await self._client.create(ClaimManifest(**migration.new_claim(look.journal)))
            case MigrationStep.REMOVE_SOURCE:
                await self._remove_source(seen.source)
            case _:
                await self._patch_volume(seen.target, _target_patch(step, move, seen))

    async def _record(self, migration: Migration, look: Look) -> None:
        """Record the current claim, but keep its first class, which a rollback needs; and the policies."""
        csi = next((one for one in (look.seen.source, look.seen.target) if one and one.csi), None)
        if look.claim is None:
            return
        first_class = look.journal.claim["spec"].get("storageClassName", "")
        claim = plain_claim(look.claim)
        spec = {**claim["spec"], "storageClassName": first_class}
        # Once the source is kept, the policies are recorded, perhaps by a later command than this one.
        base = look.journal if look.seen.source_mark in KEPT else migration.journal
        text = write_journal(replace(base, claim={**claim, "spec": spec}))
        await self._patch_volume(csi, {"metadata": {"annotations": {ANNOTATION: text}}})

    async def _mark_claim(self, claim: Claim | None, mark: Mark | None) -> None:
        if claim is None:
            return
        patch = {"metadata": {**marking(mark), **_exactly(claim)}}
        with translated(f"claim {claim.key}"):
            await self._client.patch(
                ClaimManifest, claim.name, patch, namespace=claim.namespace, patch_type=PatchType.MERGE
            )

    async def _remove_claim(self, claim: Claim | None) -> None:
        if claim is None:
            return
        with translated(f"claim {claim.key}"):
            await delete_exactly(
                self._client,
                ClaimManifest,
                claim.name,
                claim.uid,
                namespace=claim.namespace,
                resource_version=claim.resource_version,
            )

    async def _remove_source(self, volume: Volume | None) -> None:
        if volume is None:
            return
        if not volume.deleting:
            await self._volumes.terminate(volume)
        if FINALIZER in volume.finalizers:
            await self._volumes.release(volume)

    async def _patch_volume(self, volume: Volume | None, patch: Mapping[str, Any]) -> None:
        if volume is None:
            return
        exact = {**patch, "metadata": {**patch.get("metadata", {}), **_exactly(volume)}}
        with translated(f"volume {volume.name}"):
            await self._client.patch(VolumeManifest, volume.name, exact, patch_type=PatchType.MERGE)


def _exactly(found: Claim | Volume) -> Manifest:
    """The metadata with which a patch changes this object only, and only as it was seen."""
    return {"uid": found.uid, "resourceVersion": found.resource_version}


def _policy_patch(policy: ReclaimPolicy, mark: Mark) -> Manifest:
    return {"metadata": marking(mark), "spec": {"persistentVolumeReclaimPolicy": str(policy)}}


def _target_patch(step: MigrationStep, move: Move, seen: Seen) -> Manifest:
    match step:
        case MigrationStep.REOPEN_TARGET:
            patch = _policy_patch(ReclaimPolicy.RETAIN, Mark.ARRIVING)
            # Complete, because the volume may have been recreated without a reservation.
            reserved = reservation_patch(move.namespace, move.claim, None)
            return {**patch, "spec": {**patch["spec"], "claimRef": reserved}}
        case MigrationStep.RESTORE_POLICY:
            return _policy_patch(seen.final_policy(move), Mark.ARRIVED)
        case _:
            return {"metadata": marking(Mark.ARRIVING)}


def _policies(journal: Journal) -> tuple[ReclaimPolicy, ReclaimPolicy]:
    return journal.policy, journal.nfs_policy


def _key(body: Mapping[str, Any]) -> tuple[str, str]:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _journal_on(csi: Manifest) -> Journal:
    name = csi["metadata"]["name"]
    note = (csi["metadata"].get("annotations") or {}).get(ANNOTATION)
    if note is None:
        raise MigrationRefused(
            "exists already, and was not created by a migration",
            field="volume",
            value=name,
            remedy="check what it is for, and delete it if it is unused",
        )
    return read_journal(note, volume=name)


def _check_same(nfs: Manifest | None, journal: Journal) -> None:
    expected = journal.volume
    if nfs is not None and nfs["spec"].get("nfs") != expected["spec"].get("nfs"):
        raise MigrationRefused(
            "is not the volume that was migrated",
            field="volume",
            value=nfs["metadata"]["name"],
            remedy="delete it if it is unused, or keep the CSI volume",
        )


def _name(pod: Pod) -> str:
    return (pod.metadata and pod.metadata.name) or ""


def _claims_of(pod: Pod) -> set[str]:
    """The names of the claims that a pod refers to, also of its ephemeral volumes."""
    found = set()
    for volume in (pod.spec and pod.spec.volumes) or ():
        if volume.persistentVolumeClaim:
            found.add(volume.persistentVolumeClaim.claimName)
        if volume.ephemeral:
            found.add(f"{_name(pod)}-{volume.name}")
    return found
