"""Claims in the Kubernetes API: the annotations that the controller writes."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolumeClaim
from lightkube.types import PatchType

from kube_efs.kube.errors import translated
from kube_efs.kube.reading import read_claim
from kube_efs.model.claims import Claim
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import KubeConflict, KubeNotFound, NotYet
from kube_efs.model.tunnel_volumes import CHOSEN_FILE_SYSTEM, REJECT_REASON, REJECTED

# How often a claim may change while its file system is recorded.
_CHANGES_FOLLOWED: Final = 5


class ClaimStore:
    """Annotates claims; raises KubeError. A deleted claim is not an error."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def mark_refused(self, claim: Claim, reason: str) -> None:
        """Annotate the claim with the reason of its refusal."""
        await self._annotate(claim, {REJECTED: "true", REJECT_REASON: reason})

    async def mark_accepted(self, claim: Claim) -> None:
        """Remove the annotations of a refused claim."""
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

    async def _live(self, claim: Claim) -> Claim | None:
        """The current claim; None if it was deleted."""
        try:
            with translated(f"claim {claim.key}"):
                found = await self._client.get(PersistentVolumeClaim, claim.name, namespace=claim.namespace)
        except KubeNotFound:
            return None
        live = read_claim(found.to_dict())
        return live if live.uid == claim.uid else None

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
