"""The cluster-wide watches: claims, volumes and classes become values and go to their controllers."""

import asyncio
from collections.abc import Callable

from lightkube import AsyncClient
from lightkube.core.resource import Resource
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass as StorageClassResource

from kube_efs.controllers.claims import ClaimController
from kube_efs.controllers.volumes import VolumeController
from kube_efs.kube.reading import Json, read_claim, read_storage_class, read_volume
from kube_efs.kube.watching import Applied, Deleted, Listed, follow
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.provisioning.inventory import Inventory


async def watch_claims(
    client: AsyncClient, claims: ClaimController, root_changed: Callable[[], None]
) -> None:
    """Tell the controller of every claim, until cancelled; ``root_changed`` is for root claims that go."""
    async for change in follow(client, PersistentVolumeClaim, namespace="*"):
        match change:
            case Listed(objects):
                claims.listed([read_claim(_body(item)) for item in objects])
            case Applied(found):
                claims.seen(read_claim(_body(found)))
            case Deleted(found):
                claim = read_claim(_body(found))
                claims.gone(claim)
                if claim.storage_class == ROOT_CLASS:
                    root_changed()


async def watch_volumes(
    client: AsyncClient, volumes: VolumeController, root_changed: Callable[[], None], listed: asyncio.Event
) -> None:
    """Tell the controller of every volume, until cancelled; ``listed`` is set once all are known."""
    async for change in follow(client, PersistentVolume):
        match change:
            case Listed(objects):
                volumes.listed([read_volume(_body(item)) for item in objects])
                listed.set()
            case Applied(found):
                volumes.seen(read_volume(_body(found)))
            case Deleted(found):
                volume = read_volume(_body(found))
                volumes.gone(volume)
                if volume.storage_class == ROOT_CLASS:
                    root_changed()


async def watch_classes(
    client: AsyncClient, inventory: Inventory, claims: ClaimController, listed: asyncio.Event
) -> None:
    """Keep the inventory's classes, until cancelled; ``listed`` is set once all are known."""
    async for change in follow(client, StorageClassResource):
        match change:
            case Listed(objects):
                found_now = {one.name: one for one in map(read_storage_class, map(_body, objects))}
                changed = {name for name, one in found_now.items() if inventory.classes.get(name) != one}
                inventory.classes = found_now
                listed.set()
            case Applied(found):
                one = read_storage_class(_body(found))
                inventory.classes[one.name] = one
                changed = {one.name}
            case Deleted(found):
                inventory.classes.pop(read_storage_class(_body(found)).name, None)
                changed = set()
        for name in changed:
            claims.class_changed(name)


def _body(found: Resource) -> Json:
    body: Json = found.to_dict()  # type: ignore[attr-defined]  # every kind has it
    return body
