"""Reads and writes of single objects of any kind, as manifests."""

from collections.abc import Mapping
from typing import Any

from lightkube import AsyncClient
from lightkube.types import CascadeType, PatchType

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeNotFound
from kube_efs.operator.drift import FIELD_MANAGER
from kube_efs.operator.kinds import KINDS, ObjectReference, reference_of
from kube_efs.operator.manifests import Manifest


class ObjectClient:
    """The objects of a cluster; everything raises KubeError. ``client`` is for what is not of KINDS."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self._any: Any = client  # its overloads want the kind spelt out

    async def get(self, reference: ObjectReference) -> Manifest | None:
        """The object, or None when there is none, be it that its kind is unknown."""
        try:
            with translated(str(reference)):
                found = await self._any.get(_resource(reference), reference.name, **_scope(reference))
        except KubeNotFound:
            return None
        return manifest_of(found, reference.kind)

    async def find(
        self,
        kind: str,
        *,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        namespace: str | None = "*",
    ) -> tuple[Manifest, ...]:
        """The objects of that name, or with these labels; none of an unknown kind."""
        scope = {"namespace": namespace} if namespace and KINDS[kind].is_namespaced else {}
        fields = {"metadata.name": name} if name else None
        try:
            with translated(f"{kind} {name}"):
                listing = self._any.list(KINDS[kind].resource, fields=fields, labels=labels, **scope)
                return tuple([manifest_of(item, kind) async for item in listing])
        except KubeNotFound:
            return ()

    async def apply(self, manifest: Manifest) -> Manifest:
        """The object after it was applied, with force: it takes fields from other managers."""
        reference = reference_of(manifest)
        with translated(str(reference)):
            applied = await self._any.patch(
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
        """The object, replacing that of its resource version."""
        reference = reference_of(manifest)
        resource: Any = _resource(reference)
        with translated(str(reference)):
            replaced = await self._any.replace(
                resource.from_dict(dict(manifest)), field_manager=FIELD_MANAGER
            )
        return manifest_of(replaced, reference.kind)

    async def merge(self, reference: ObjectReference, patch: Manifest) -> None:
        """Lay this over the object."""
        with translated(str(reference)):
            await self._any.patch(
                _resource(reference),
                reference.name,
                dict(patch),
                patch_type=PatchType.MERGE,
                field_manager=FIELD_MANAGER,
                **_scope(reference),
            )

    async def delete(
        self, reference: ObjectReference, *, cascade: CascadeType = CascadeType.BACKGROUND
    ) -> bool:
        """Delete the object; gives whether there was one."""
        try:
            with translated(str(reference)):
                await self._any.delete(
                    _resource(reference), reference.name, cascade=cascade, **_scope(reference)
                )
        except KubeNotFound:
            return False
        return True


def manifest_of(found: Any, kind: str) -> Manifest:  # noqa: ANN401 - any resource
    """A resource as the API has it; items of lists do not tell their kind."""
    return {**found.to_dict(), "kind": kind}


def _resource(reference: ObjectReference) -> Any:  # noqa: ANN401 - the client's overloads want the kind spelt out
    return KINDS[reference.kind].resource


def _scope(reference: ObjectReference) -> dict[str, str]:
    return {"namespace": reference.namespace} if reference.namespace else {}
