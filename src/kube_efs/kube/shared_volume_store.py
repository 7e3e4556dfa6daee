"""Reads and writes SharedVolumes and their objects in the Kubernetes API; all methods raise KubeError."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from lightkube import AsyncClient
from lightkube.resources.core_v1 import Namespace, PersistentVolume, PersistentVolumeClaim, Pod
from lightkube.types import PatchType

from kube_efs.kube.building import reservation_patch
from kube_efs.kube.deleting import delete_exactly
from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.kube.shared_volumes import (
    SharedVolumeResource,
    build_shared_volume_s_claim,
    build_shared_volume_s_volume,
    build_status,
    marks_patch,
    read_marked_claim,
    read_marked_volume,
    read_shared_volume,
)
from kube_efs.model.errors import KubeNotFound
from kube_efs.model.shared_volumes.shared_volume import (
    FINALIZER,
    MarkedClaim,
    MarkedVolume,
    Owner,
    SharedVolume,
    SharedVolumeSource,
    Status,
    owner_of_claim,
)

# Accepted by the definition, and never valid in AWS.
_NO_FILE_SYSTEM: Final = "fs-0"
_NO_ACCESS_POINT: Final = "fsap-0"


# The pods of a namespace are listed again so long after a list, and at most in a tenth of the time.
_LIST_AGAIN_SECONDS: Final = 10.0
_LIST_AGAIN_TIMES: Final = 9
# Namespaces whose pods are listed at a time. Each list needs the memory of a page.
_MOST_LISTS: Final = 2
# Of one namespace: how often its pods name a claim. Only its own messages lack pods beyond that.
_MOST_USES: Final = 100_000


class SharedVolumeStore:
    """SharedVolumes, their volumes and their claims."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        # By namespace, the pods of each claim, and until it is listed again.
        self._users: dict[str, asyncio.Task[Mapping[str, Sequence[str]]]] = {}
        self._lists = asyncio.Semaphore(_MOST_LISTS)

    async def get(self, owner: Owner) -> SharedVolume | None:
        """The current SharedVolume."""
        try:
            with translated(f"SharedVolume {owner}"):
                found = await self._client.get(SharedVolumeResource, owner.name, namespace=owner.namespace)
        except KubeNotFound:
            return None
        return read_shared_volume(found)

    async def volume(self, owner: Owner) -> MarkedVolume | None:
        """The volume of that name, of any creator."""
        try:
            with translated(f"PersistentVolume {owner.volume_name}"):
                found = await self._client.get(PersistentVolume, owner.volume_name)
        except KubeNotFound:
            return None
        return read_marked_volume(found.to_dict())

    async def claim(self, owner: Owner) -> MarkedClaim | None:
        """The claim of that name, of any creator."""
        try:
            with translated(f"PersistentVolumeClaim {owner.claim_name}"):
                found = await self._client.get(
                    PersistentVolumeClaim, owner.claim_name, namespace=owner.namespace
                )
        except KubeNotFound:
            return None
        return read_marked_claim(found.to_dict())

    async def users(self, owner: Owner) -> tuple[str, ...]:
        """The names of the pods that block the deletion of the claim: those on a node, ended or not.

        Only for messages, because the answer, or the error, may be older than the call: all claims of a
        namespace share a list of its pods. Its users can create any number of pods, and of claims that wait.
        """
        namespace = owner.namespace
        listed = self._users.get(namespace)
        if listed is None:
            listed = self._users[namespace] = asyncio.create_task(self._list_users(namespace))
            # Its error goes to the waiting callers; if all were cancelled, nothing gets it.
            listed.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A cancelled caller must not cancel the list for the others.
        return tuple(sorted((await asyncio.shield(listed)).get(owner.claim_name, ())))

    async def _list_users(self, namespace: str) -> Mapping[str, Sequence[str]]:
        loop = asyncio.get_running_loop()
        users: defaultdict[str, list[str]] = defaultdict(list)
        uses = 0
        async with self._lists:
            began, pause = loop.time(), _LIST_AGAIN_SECONDS
            try:
                with translated(f"pods of namespace {namespace}"):
                    async for pod in self._client.list(Pod, namespace=namespace, chunk_size=PAGE_SIZE):
                        for claim in _claims_of(pod):
                            users[claim].append(str(pod.metadata and pod.metadata.name))
                            uses += 1
                        if uses >= _MOST_USES:
                            break
                # Not after a failure, which says nothing about the number of pods.
                pause = max(pause, _LIST_AGAIN_TIMES * (loop.time() - began))
            finally:
                loop.call_later(pause, self._users.pop, namespace, None)
        return users

    async def annotation(self, namespace: str, key: str) -> str | None:
        """One annotation of a Namespace; None without it, or without the Namespace."""
        try:
            with translated(f"Namespace {namespace}"):
                found = await self._client.get(Namespace, namespace)
        except KubeNotFound:
            return None
        return ((found.metadata and found.metadata.annotations) or {}).get(key)

    async def hold(self, shared: SharedVolume) -> SharedVolume:
        """Add the finalizer."""
        return await self._patch(shared, {"finalizers": [*shared.finalizers, FINALIZER]})

    async def release(self, shared: SharedVolume) -> None:
        """Remove the finalizer; a deleted SharedVolume is not an error."""
        kept = [name for name in shared.finalizers if name != FINALIZER]
        # The definition of the older system allowed objects without a spec. The API server refuses every
        # change of such an object that leaves the spec out.
        source = shared.source
        is_complete = source.file_system_id and source.access_point_id
        spec = {
            "fileSystemID": source.file_system_id or _NO_FILE_SYSTEM,
            "accessPointID": source.access_point_id or _NO_ACCESS_POINT,
        }
        try:
            await self._patch(shared, {"finalizers": kept}, None if is_complete else {"spec": spec})
        except KubeNotFound:
            return

    async def restore(self, shared: SharedVolume, source: SharedVolumeSource) -> SharedVolume:
        """Write this source into the spec; raises KubeInvalid if the API server refuses the change."""
        spec = {"fileSystemID": source.file_system_id, "accessPointID": source.access_point_id}
        return await self._patch(shared, {}, {"spec": spec})

    async def _patch(
        self, shared: SharedVolume, metadata: Mapping[str, Any], rest: Mapping[str, Any] | None = None
    ) -> SharedVolume:
        # A patch replaces the whole list, so the list must not have changed since it was read.
        guards = {"uid": shared.uid, "resourceVersion": shared.resource_version}
        patch = {"metadata": {**guards, **metadata}, **(rest or {})}
        owner = shared.owner
        with translated(f"SharedVolume {owner}"):
            found = await self._client.patch(
                SharedVolumeResource, owner.name, patch, namespace=owner.namespace, patch_type=PatchType.MERGE
            )
        return read_shared_volume(found)

    async def write_status(self, shared: SharedVolume, status: Status) -> SharedVolume:
        """Write the status; raises KubeConflict if anything has changed since ``shared`` was read.

        So a request that is carried out late replaces no newer status, and the spec of the answer is the one
        that the decision was about.
        """
        owner = shared.owner
        guards = {"uid": shared.uid, "resourceVersion": shared.resource_version}
        patch = {"metadata": guards, "status": build_status(shared, status)}
        with translated(f"status of SharedVolume {owner}"):
            found = await self._client.patch(
                SharedVolumeResource.Status,
                owner.name,
                patch,
                namespace=owner.namespace,
                patch_type=PatchType.MERGE,
            )
        return read_shared_volume(found)

    async def make_volume(self, shared: SharedVolume, claim: MarkedClaim | None) -> MarkedVolume:
        """Create the volume, for this claim or a future one."""
        body = build_shared_volume_s_volume(shared, claim.claim.uid if claim else None)
        with translated(f"PersistentVolume {shared.owner.volume_name}"):
            return read_marked_volume((await self._client.create(body)).to_dict())

    async def make_claim(self, shared: SharedVolume) -> MarkedClaim:
        """Create the claim."""
        with translated(f"PersistentVolumeClaim {shared.owner.claim_name}"):
            created = await self._client.create(build_shared_volume_s_claim(shared))
        return read_marked_claim(created.to_dict())

    async def tie(self, owner: Owner, volume: MarkedVolume, claim: MarkedClaim | None) -> MarkedVolume:
        """Reserve the volume for this claim or a future one; raises KubeConflict if the volume changed."""
        uid = claim.claim.uid if claim else None
        reserved = reservation_patch(owner.namespace, owner.claim_name, uid)
        return await self._patch_volume(volume, {}, {"spec": {"claimRef": reserved}})

    async def mark_volume(self, owner: Owner, volume: MarkedVolume) -> MarkedVolume:
        """Write the labels and annotations of the owner to the volume."""
        return await self._patch_volume(volume, marks_patch(owner), {})

    async def _patch_volume(
        self, volume: MarkedVolume, metadata: Mapping[str, Any], rest: Mapping[str, Any]
    ) -> MarkedVolume:
        name = volume.volume.name
        # Kubernetes' binder writes the same claim reference. A patch that was decided on an older version
        # could remove the UID that the binder has just written, and the claim would be Lost.
        guards = {"uid": volume.volume.uid, "resourceVersion": volume.volume.resource_version}
        patch = {"metadata": {**guards, **metadata}, **rest}
        with translated(f"PersistentVolume {name}"):
            found = await self._client.patch(PersistentVolume, name, patch, patch_type=PatchType.MERGE)
        return read_marked_volume(found.to_dict())

    async def mark_claim(self, owner: Owner, claim: MarkedClaim) -> MarkedClaim:
        """Write the labels and annotations of the owner to the claim."""
        patch = {"metadata": {"uid": claim.claim.uid, **marks_patch(owner)}}
        with translated(f"PersistentVolumeClaim {owner.claim_name}"):
            found = await self._client.patch(
                PersistentVolumeClaim,
                owner.claim_name,
                patch,
                namespace=owner.namespace,
                patch_type=PatchType.MERGE,
            )
        return read_marked_claim(found.to_dict())

    async def remove_volume(self, volume: MarkedVolume) -> None:
        """Delete exactly this volume; Kubernetes keeps it while a claim is bound to it."""
        one = volume.volume
        with suppress(KubeNotFound), translated(f"PersistentVolume {one.name}"):
            await delete_exactly(self._client, PersistentVolume, one.name, one.uid)

    async def remove_claim(self, claim: MarkedClaim) -> None:
        """Delete exactly this claim; Kubernetes keeps it while pods use it."""
        one = claim.claim
        with suppress(KubeNotFound), translated(f"PersistentVolumeClaim {one.name}"):
            await delete_exactly(
                self._client, PersistentVolumeClaim, one.name, one.uid, namespace=one.namespace
            )


def _claims_of(pod: Pod) -> set[str]:
    """The claims whose deletion the pod blocks; only those that a SharedVolume can have."""
    spec = pod.spec
    if spec is None or not spec.nodeName:
        return set()
    claims = (volume.persistentVolumeClaim for volume in spec.volumes or ())
    names = {claim.claimName for claim in claims if claim is not None}
    return {name for name in names if owner_of_claim("", name)}
