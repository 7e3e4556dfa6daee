"""Reads and writes the objects of migrations in the Kubernetes API; everything raises KubeError."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lightkube import AsyncClient
from lightkube.generic_resource import GenericGlobalResource, GenericNamespacedResource, create_api_info
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.resources.storage_v1 import CSIDriver
from lightkube.types import PatchType

from kube_efs.kube.deleting import delete_exactly
from kube_efs.kube.errors import translated
from kube_efs.kube.reading import read_claim, read_volume
from kube_efs.kube.volumes import VolumeStore
from kube_efs.migration.errors import MigrationRefused
from kube_efs.migration.journal import ANNOTATION, Journal, read_journal, write_journal
from kube_efs.migration.manifests import Manifest, plain_claim, same_claim
from kube_efs.migration.plan import Migration, MigrationState
from kube_efs.migration.steps import MigrationStep, Seen
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import CONFIG_MAP_KEY, TunnelTargets, parse_targets
from kube_efs.model.errors import KubeDenied, KubeNotFound
from kube_efs.model.names import Names
from kube_efs.model.volumes import DRIVER, Volume


# The client's own classes drop fields of newer versions of Kubernetes; these do not take their place there.
class VolumeManifest(GenericGlobalResource):
    """A PersistentVolume with all of its fields."""

    _api_info = create_api_info("", "v1", "PersistentVolume", "persistentvolumes")


class ClaimManifest(GenericNamespacedResource):
    """A PersistentVolumeClaim with all of its fields."""

    _api_info = create_api_info("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The claim and its volumes, and the journal."""

    seen: Seen
    journal: Journal


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
            volumes = [dict(one) async for one in self._client.list(VolumeManifest)]
        with translated("claims"):
            found = self._client.list(ClaimManifest, namespace=namespace or "*")
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
        nfs, csi = await self._volume(migration.nfs), await self._volume(migration.csi)
        claim = await self._claim(migration)
        journal = migration.journal if csi is None else _journal_on(csi)
        _check_same(nfs, journal)
        old, new = (read_volume(one) if one else None for one in (nfs, csi))
        forward = migration.move.target == migration.csi
        seen = Seen(
            claim=read_claim(claim) if claim else None,
            source=old if forward else new,
            target=new if forward else old,
            users=await self._users(migration) if claim else (),
            recorded=claim is not None and same_claim(plain_claim(claim), journal.claim),
            policies_recorded=_policies(journal) == _policies(migration.journal),
        )
        return Look(seen=seen, journal=journal)

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
            pods = [pod async for pod in self._client.list(Pod, namespace=migration.namespace)]
        return tuple(sorted(_name(pod) for pod in pods if migration.claim in _claims_of(pod)))

    async def take(self, step: MigrationStep, migration: Migration, look: Look) -> None:
        """Make the change to these objects, and to no other objects of the same names."""
        move, seen = migration.move, look.seen
        match step:
            case MigrationStep.MAKE_TARGET:
                with translated(f"volume {move.target}"):
                    await self._client.create(VolumeManifest(**migration.target_volume))
            case MigrationStep.KEEP_SOURCE:
                await self._set_policy(seen.source, ReclaimPolicy.RETAIN)
            case MigrationStep.RECORD:
                await self._record(migration, look)
            case MigrationStep.REOPEN_TARGET:
                spec = {"claimRef": {"uid": None, "resourceVersion": None}}
                await self._patch_volume(seen.target, {"spec": spec})
            case MigrationStep.REMOVE_CLAIM:
                await self._remove_claim(migration, seen)
            case MigrationStep.MAKE_CLAIM:
                with translated(f"claim {move.namespace}/{move.claim}"):
                    await self._client.create(ClaimManifest(**migration.new_claim(look.journal)))
            case MigrationStep.RESTORE_POLICY:
                await self._set_policy(seen.target, move.policy)
            case MigrationStep.REMOVE_SOURCE:
                if seen.source:
                    await self._volumes.delete(seen.source)

    async def _set_policy(self, volume: Volume | None, policy: ReclaimPolicy) -> None:
        await self._patch_volume(volume, {"spec": {"persistentVolumeReclaimPolicy": str(policy)}})

    async def _record(self, migration: Migration, look: Look) -> None:
        """Record the current claim, but keep its first class, which a rollback needs; and the policies."""
        body = await self._claim(migration)
        csi = next((one for one in (look.seen.source, look.seen.target) if one and one.csi), None)
        if body is None or csi is None:
            return
        first_class = look.journal.claim["spec"].get("storageClassName", "")
        claim = plain_claim(body)
        spec = {**claim["spec"], "storageClassName": first_class}
        text = write_journal(replace(migration.journal, claim={**claim, "spec": spec}))
        await self._patch_volume(csi, {"metadata": {"annotations": {ANNOTATION: text}}})

    async def _remove_claim(self, migration: Migration, seen: Seen) -> None:
        if seen.claim is None:
            return
        with suppress(KubeNotFound), translated(f"claim {seen.claim.key}"):
            await delete_exactly(
                self._client,
                ClaimManifest,
                seen.claim.name,
                seen.claim.uid,
                namespace=migration.namespace,
            )

    async def _patch_volume(self, volume: Volume | None, patch: Mapping[str, Any]) -> None:
        if volume is None:
            return
        # The uid makes the patch fail, instead of changing a new volume of the same name.
        guarded = {**patch, "metadata": {"uid": volume.uid, **patch.get("metadata", {})}}
        with translated(f"volume {volume.name}"):
            await self._client.patch(VolumeManifest, volume.name, guarded, patch_type=PatchType.MERGE)


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
