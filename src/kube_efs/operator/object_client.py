"""Reads and writes objects of any kind as manifests."""

from collections.abc import Mapping
from typing import Any, Final

from lightkube import AsyncClient
from lightkube.types import CascadeType, PatchType

from kube_efs.kube.deleting import delete_exactly
from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.model.errors import KubeNotFound
from kube_efs.operator.kinds import KINDS, ObjectReference, reference_of
from kube_efs.operator.manifests import Manifest

FIELD_MANAGER: Final = "kube-efs-operator"


class ObjectClient:
    """Reads and writes objects of KINDS; ``client`` is for other kinds. Every method raises KubeError."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self._untyped: Any = client  # its overloads accept only a kind that is known to the type checker

    async def get(self, reference: ObjectReference) -> Manifest | None:
        """The object; None if it does not exist, or if the cluster does not have its kind."""
        try:
            with translated(str(reference)):
                found = await self._untyped.get(_resource(reference), reference.name, **_scope(reference))
        except KubeNotFound:
            return None
        return manifest_of(found, reference.kind)

    async def list(
        self,
        kind: str,
        *,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        namespace: str | None = "*",
    ) -> tuple[Manifest, ...]:
        """The objects with that name, or with these labels; none if the cluster does not have the kind."""
        scope = {"namespace": namespace} if namespace and KINDS[kind].is_namespaced else {}
        fields = {"metadata.name": name} if name else None
        try:
            with translated(f"{kind} {name}"):
                listing = self._untyped.list(
                    KINDS[kind].resource, fields=fields, labels=labels, chunk_size=PAGE_SIZE, **scope
                )
                return tuple([manifest_of(item, kind) async for item in listing])
        except KubeNotFound:
            return ()

    async def apply(self, manifest: Manifest) -> Manifest:
        """Apply on the server, and take over fields of other managers; gives the object after that."""
        reference = reference_of(manifest)
        with translated(str(reference)):
            applied = await self._untyped.patch(
                _resource(reference),
                reference.name,
                dict(manifest),
                patch_type=PatchType.APPLY,
                field_manager=FIELD_MANAGER,
                force=True,
                **_scope(reference),
            )
        return manifest_of(applied, reference.kind)

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace the object that has the same resource version; gives the object after that."""
        reference = reference_of(manifest)
        resource: Any = _resource(reference)
        with translated(str(reference)):
            replaced = await self._untyped.replace(
                resource.from_dict(dict(manifest)), field_manager=FIELD_MANAGER
            )
        return manifest_of(replaced, reference.kind)

    async def merge_patch(self, reference: ObjectReference, patch: Manifest) -> Manifest:
        """Change the fields of the patch; gives the object after that."""
        with translated(str(reference)):
            patched = await self._untyped.patch(
                _resource(reference),
                reference.name,
                dict(patch),
                patch_type=PatchType.MERGE,
                field_manager=FIELD_MANAGER,
                **_scope(reference),
            )
        return manifest_of(patched, reference.kind)

    async def delete(self, found: Manifest, *, cascade: CascadeType = CascadeType.BACKGROUND) -> bool:
        """Delete exactly this object, and not a newer one of its name; False if it did not exist.

        A request that is carried out late must not delete what was installed again meanwhile.
        """
        reference, uid = reference_of(found), found["metadata"]["uid"]
        resource, scope = _resource(reference), _scope(reference)
        try:
            with translated(str(reference)):
                await delete_exactly(self.client, resource, reference.name, uid, cascade=cascade, **scope)
        except KubeNotFound:
            return False
        return True


def manifest_of(found: Any, kind: str) -> Manifest:  # noqa: ANN401 - any resource
    """A resource as the API has it, with its kind, which the items of a list do not have."""
    return {**found.to_dict(), "kind": kind}


def _resource(reference: ObjectReference) -> Any:  # noqa: ANN401 - the client's overloads need a known kind
    return KINDS[reference.kind].resource


def _scope(reference: ObjectReference) -> dict[str, str]:
    return {"namespace": reference.namespace} if reference.namespace else {}
