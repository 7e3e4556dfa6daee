"""VolumeSnapshots and their contents in the Kubernetes API, as csi-snapshotter 8 reads and writes them."""

from collections.abc import Mapping
from typing import Any, Final

from lightkube import AsyncClient
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.types import PatchType

from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.kube.reading import Json
from kube_efs.model.claims import SNAPSHOT_GROUP, ReclaimPolicy
from kube_efs.model.errors import KubeNotFound, KubeUnavailable, NotYet
from kube_efs.model.snapshots import BEING_CREATED, FINALIZER, SnapshotContent

VolumeSnapshot: Final[Any] = create_namespaced_resource(
    SNAPSHOT_GROUP, "v1", "VolumeSnapshot", "volumesnapshots"
)
VolumeSnapshotContent: Final[Any] = create_global_resource(
    SNAPSHOT_GROUP, "v1", "VolumeSnapshotContent", "volumesnapshotcontents"
)


def read_content(body: Json) -> SnapshotContent:
    """The content in a VolumeSnapshotContent."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    source, snapshot = spec.get("source") or {}, spec.get("volumeSnapshotRef") or {}
    return SnapshotContent(
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta.get("resourceVersion", ""),
        driver=spec.get("driver", ""),
        deletion_policy=ReclaimPolicy.DELETE
        if spec.get("deletionPolicy") == ReclaimPolicy.DELETE
        else ReclaimPolicy.RETAIN,
        volume_handle=source.get("volumeHandle") or "",
        given_handle=source.get("snapshotHandle") or "",
        snapshot_uid=snapshot.get("uid") or "",
        annotations=dict(meta.get("annotations") or {}),
        finalizers=tuple(meta.get("finalizers") or ()),
        deleting="deletionTimestamp" in meta,
        handle=status.get("snapshotHandle") or "",
        is_ready=bool(status.get("readyToUse")),
        is_of_group=bool(status.get("volumeGroupSnapshotHandle")),
        problem=(status.get("error") or {}).get("message") or "",
    )


class SnapshotStore:
    """Reads snapshots, and writes the state of their contents; raises KubeError."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def handle(self, namespace: str, name: str, *, driver: str) -> str:
        """The handle of a snapshot of the driver.

        Raises NotYet while it does not exist, is not ready, or is of another driver.
        """
        subject = f"{namespace}/{name}"
        try:
            with translated(f"VolumeSnapshot {subject}"):
                found = (await self._client.get(VolumeSnapshot, name, namespace=namespace)).to_dict()
        except KubeNotFound as error:
            raise _not_yet("does not exist", subject, "create the VolumeSnapshot") from error
        status = found.get("status") or {}
        content_name = status.get("boundVolumeSnapshotContentName")
        if not (content_name and status.get("readyToUse")):
            raise _not_yet("is not ready yet", subject, "see its events")
        content = await self.content(content_name)
        # Users who may create a VolumeSnapshot must not read the snapshots of others with it.
        if content is None or content.snapshot_uid != found["metadata"]["uid"]:
            raise _not_yet("has no content of its own", subject, "create the VolumeSnapshot again")
        if content.driver != driver:
            raise _not_yet(f"is of the driver {content.driver}", subject, f"use a snapshot of {driver}")
        return content.handle

    async def content(self, name: str) -> SnapshotContent | None:
        """The content of that name; None if it does not exist."""
        try:
            with translated(f"VolumeSnapshotContent {name}"):
                return read_content((await self._client.get(VolumeSnapshotContent, name)).to_dict())
        except KubeNotFound:
            return None

    async def contents(self, driver: str) -> tuple[SnapshotContent, ...]:
        """The contents of the driver in the cluster. It lists all.

        Raises KubeUnavailable without this kind of objects: each content protects data.
        """
        try:
            with translated("list VolumeSnapshotContent"):
                found = self._client.list(VolumeSnapshotContent, chunk_size=PAGE_SIZE)
                # Those of other drivers may be many more, so only these are kept.
                ours = (one async for one in found if (one.spec or {}).get("driver") == driver)
                return tuple([read_content(one.to_dict()) async for one in ours])
        except KubeNotFound as error:
            raise KubeUnavailable(
                "does not seem to exist, so the snapshots that need their data are unknown",
                field="kind",
                value="VolumeSnapshotContent",
                remedy="check that the cluster has the kinds of snapshots",
            ) from error

    async def mark_being_created(self, content: SnapshotContent, *, is_being_created: bool) -> None:
        """Set or remove the annotation: with it, nobody deletes the content, because its copy may exist."""
        value = "yes" if is_being_created else None
        await self._patch(content, {"metadata": {"annotations": {BEING_CREATED: value}}})

    async def record_ready(self, content: SnapshotContent, handle: str, *, created: float) -> None:
        """The snapshot is complete; ``created`` is in seconds since 1970."""
        status = {
            "snapshotHandle": handle,
            "creationTime": int(created * 1_000_000_000),
            "readyToUse": True,
            "error": None,
        }
        await self._patch(content, {"status": status}, VolumeSnapshotContent.Status)

    async def record_problem(self, content: SnapshotContent, problem: str, *, now: str) -> None:
        """The last attempt has failed at that time, which is in the format of RFC 3339.

        Raises KubeConflict if the content has changed since it was read: a request that is carried out late
        must not say that a complete snapshot is not ready.
        """
        changes = {
            "metadata": {"resourceVersion": content.resource_version},
            "status": {"readyToUse": False, "error": {"message": problem, "time": now}},
        }
        await self._patch(content, changes, VolumeSnapshotContent.Status)

    async def record_removed(self, content: SnapshotContent) -> None:
        """The data of the snapshot is removed."""
        gone = dict.fromkeys(("snapshotHandle", "creationTime", "readyToUse", "restoreSize"))
        await self._patch(content, {"status": gone}, VolumeSnapshotContent.Status)

    async def release(self, content: SnapshotContent) -> None:
        """Remove the finalizer of snapshots, so that Kubernetes deletes the content."""
        rest = [one for one in content.finalizers if one != FINALIZER]
        version = {"resourceVersion": content.resource_version, "finalizers": rest}
        await self._patch(content, {"metadata": version})

    async def _patch(
        self,
        content: SnapshotContent,
        changes: Mapping[str, Any],
        kind: Any = VolumeSnapshotContent,  # noqa: ANN401 - the class of a generic resource
    ) -> None:
        # The uid makes the patch fail, instead of changing a new content of the same name.
        patch = {**changes, "metadata": {"uid": content.uid, **changes.get("metadata", {})}}
        with translated(f"VolumeSnapshotContent {content.name}"):
            await self._client.patch(kind, content.name, patch, patch_type=PatchType.MERGE)


def _not_yet(problem: str, snapshot: str, remedy: str) -> NotYet:
    return NotYet(problem, field="VolumeSnapshot", value=snapshot, remedy=remedy)
