"""Claims in the Kubernetes API, and what the controller writes: annotations, and the status of expansions."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolumeClaim
from lightkube.types import PatchType

from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.kube.reading import read_claim
from kube_efs.model.claims import Claim
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import KubeConflict, KubeNotFound, NotYet
from kube_efs.model.tunnel_volumes import CHOSEN_FILE_SYSTEM, REJECT_REASON, REJECTED

# How often a claim may change while its file system is recorded.
_CHANGES_FOLLOWED: Final = 5


class ClaimStore:
    """Reads and annotates claims, and writes their status; raises KubeError."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def mark_refused(self, claim: Claim, reason: str) -> None:
        """Annotate the claim with the reason of its refusal; a deleted claim is not an error."""
        await self._annotate(claim, {REJECTED: "true", REJECT_REASON: reason})

    async def mark_accepted(self, claim: Claim) -> None:
        """Remove the annotations of a refused claim; a deleted claim is not an error."""
        await self._annotate(claim, {REJECTED: None, REJECT_REASON: None})

    async def record_file_system(self, claim: Claim, chosen: FileSystemId) -> None:
        """Annotate the claim with the file system that was chosen for it, and with its own uid.

        Two controllers can choose different file systems for a claim. The write therefore has the version of
        the claim that was read before, and the API server accepts one of the two. Raises NotYet if the
        annotation has changed since ``claim`` was read.
        """
        for _ in range(_CHANGES_FOLLOWED):
            # The claim of the watch is usually outdated: Kubernetes annotates each new claim.
            live = await self._live(claim)
            if live is None or live.file_system == chosen:
                return
            if live.file_system != claim.file_system:
                raise NotYet(
                    f"was recorded for claim {claim.key} after {chosen} was chosen",
                    field="file system",
                    value=live.file_system or "none",
                    remedy="no action is necessary; the file system is chosen again",
                )
            version = {"resourceVersion": live.resource_version}
            with suppress(KubeConflict):
                await self._annotate(claim, {CHOSEN_FILE_SYSTEM: f"{chosen}/{claim.uid}"}, version)
                return
        raise KubeConflict(
            "changed too often", field=f"claim {claim.key}", remedy="no action is necessary; it is retried"
        )

    async def mark_resizing(self, claim: Claim) -> Claim:
        """The claim with the condition ``Resizing``; raises KubeConflict if it has changed."""
        began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return await self._patch_status(
            claim, {"conditions": [{"type": "Resizing", "status": "True", "lastTransitionTime": began}]}
        )

    async def record_capacity(self, claim: Claim, capacity: str) -> None:
        """End the expansion of the claim; raises KubeConflict if it has changed."""
        ended = [{"$patch": "delete", "type": kind} for kind in ("Resizing", "FileSystemResizePending")]
        await self._patch_status(claim, {"capacity": {"storage": capacity}, "conditions": ended})

    async def get(self, namespace: str, name: str) -> Claim | None:
        """The claim of that name; None if it does not exist."""
        try:
            with translated(f"claim {namespace}/{name}"):
                found = await self._client.get(PersistentVolumeClaim, name, namespace=namespace)
        except KubeNotFound:
            return None
        return read_claim(found.to_dict())

    async def list(self) -> list[Claim]:
        """Every claim of the cluster."""
        with translated("claims"):
            found = self._client.list(PersistentVolumeClaim, namespace="*", chunk_size=PAGE_SIZE)
            return [read_claim(one.to_dict()) async for one in found]

    async def is_gone(self, claim: Claim) -> bool:
        """Whether the claim does not exist any more, as the API server answers now."""
        return await self._live(claim) is None

    async def _live(self, claim: Claim) -> Claim | None:
        """The current claim; None if it was deleted."""
        live = await self.get(claim.namespace, claim.name)
        return live if live is not None and live.uid == claim.uid else None

    async def _annotate(
        self, claim: Claim, annotations: Mapping[str, str | None], condition: Mapping[str, str] | None = None
    ) -> None:
        # The uid makes the patch fail, instead of marking a new claim of the same name.
        patch = {"metadata": {"uid": claim.uid, **(condition or {}), "annotations": annotations}}
        try:
            with translated(f"claim {claim.key}"):
                await self._client.patch(
                    PersistentVolumeClaim,
                    claim.name,
                    patch,
                    namespace=claim.namespace,
                    patch_type=PatchType.MERGE,
                )
        except KubeNotFound:
            return

    async def _patch_status(self, claim: Claim, status: Mapping[str, object]) -> Claim:
        version = {"uid": claim.uid, "resourceVersion": claim.resource_version}
        # A strategic patch merges conditions by their type. A merge patch would replace those of others.
        with translated(f"status of claim {claim.key}"):
            patched = await self._client.patch(
                PersistentVolumeClaim.Status,
                claim.name,
                {"metadata": version, "status": status},
                namespace=claim.namespace,
                patch_type=PatchType.STRATEGIC,
            )
        return read_claim(patched.to_dict())
