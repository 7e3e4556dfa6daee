"""The cluster-wide watches: claims, volumes and classes become values and go to their controllers."""

import asyncio
from collections.abc import Callable

from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass as StorageClassResource

from kube_efs.controllers.claims import ClaimController
from kube_efs.controllers.volumes import VolumeController
from kube_efs.kube.reading import read_claim, read_storage_class, read_volume
from kube_efs.kube.watching import Applied, Change, Deleted, Listed, follow
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import Volume
from kube_efs.provisioning.volume_index import Inventory


async def watch_claims(
    client: AsyncClient, claims: ClaimController, root_changed: Callable[[], None], listed: asyncio.Event
) -> None:
    """Tell the controller of every claim, until cancelled; ``listed`` is set once all are known.

    ``root_changed`` is for root claims that go.
    """
    async for change in follow(client, PersistentVolumeClaim, read=_claim, namespace="*"):
        _tell_claims(claims, change, root_changed)
        listed.set()
        # Nobody keeps the claims of a list that have their volumes, which is nearly all of them.
        del change


def _tell_claims(claims: ClaimController, change: Change[Claim], root_changed: Callable[[], None]) -> None:
    match change:
        case Listed(objects):
            claims.listed(objects)
        case Applied(claim):
            claims.seen(claim)
        case Deleted(claim):
            claims.gone(claim)
            if claim.storage_class == ROOT_CLASS:
                root_changed()


async def watch_volumes(
    client: AsyncClient, volumes: VolumeController, root_changed: Callable[[], None], listed: asyncio.Event
) -> None:
    """Tell the controller of every volume, until cancelled; ``listed`` is set once all are known."""
    async for change in follow(client, PersistentVolume, read=read_volume_object):
        match change:
            case Listed(objects):
                volumes.listed(objects)
                listed.set()
            case Applied(volume):
                volumes.seen(volume)
            case Deleted(volume):
                volumes.gone(volume)
                if volume.storage_class == ROOT_CLASS:
                    root_changed()


async def watch_classes(
    client: AsyncClient, inventory: Inventory, claims: ClaimController, listed: asyncio.Event
) -> None:
    """Keep the inventory's classes, until cancelled; ``listed`` is set once all are known."""
    async for change in follow(client, StorageClassResource, read=_storage_class):
        match change:
            case Listed(objects):
                found_now = {one.name: one for one in objects}
                changed = {name for name, one in found_now.items() if inventory.classes.get(name) != one}
                inventory.classes = found_now
                listed.set()
            case Applied(one):
                inventory.classes[one.name] = one
                changed = {one.name}
            case Deleted(one):
                inventory.classes.pop(one.name, None)
                changed = set()
        for name in changed:
            claims.class_changed(name)


def read_volume_object(found: PersistentVolume) -> Volume:
    """The volume in an object of the client."""
    return read_volume(found.to_dict())


def _claim(found: PersistentVolumeClaim) -> Claim:
    return read_claim(found.to_dict())


def _storage_class(found: StorageClassResource) -> StorageClass:
    return read_storage_class(found.to_dict())
