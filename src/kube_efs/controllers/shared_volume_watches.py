"""The watches of SharedVolumes, of the volumes and claims with their label, and of namespaces' limits."""

import asyncio
from contextlib import AsyncExitStack

from lightkube import AsyncClient
from lightkube.resources.core_v1 import Namespace, PersistentVolume, PersistentVolumeClaim

from kube_efs.controllers.shared_volume_events import SharedVolumeNews
from kube_efs.controllers.shared_volumes import SharedVolumeController
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.reading import Json
from kube_efs.kube.shared_volume_store import SharedVolumeStore
from kube_efs.kube.shared_volumes import SharedVolumeResource, read_marked_volume, read_owner
from kube_efs.kube.watching import Applied, Deleted, Listed, follow
from kube_efs.model.shared_volume_limits import ANNOTATION
from kube_efs.model.shared_volumes import OWNED, Owner, owner_of_claim
from kube_efs.provisioning.shared_volumes import SharedVolumeSteps
from kube_efs.settings import ControllerSettings
from kube_efs.telemetry.metrics import SharedVolumeMetrics

_LABELS = {OWNED: "true"}


async def serve_shared_volumes(
    client: AsyncClient, settings: ControllerSettings, recorder: EventRecorder, metrics: SharedVolumeMetrics
) -> None:
    """Serve SharedVolumes until cancelled."""
    store = SharedVolumeStore(client)
    async with AsyncExitStack() as stack:
        controller = SharedVolumeController(
            store,
            SharedVolumeSteps(store, settings.shared_volume_limits),
            SharedVolumeNews(recorder, metrics),
            backoff_seconds=settings.provision_backoff_seconds,
        )
        await stack.enter_async_context(controller)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(_watch_shared_volumes(client, controller))
        tasks.create_task(_watch_volumes(client, controller))
        tasks.create_task(_watch_claims(client, controller))
        tasks.create_task(watch_limits(client, controller))


async def _watch_shared_volumes(client: AsyncClient, controller: SharedVolumeController) -> None:
    async for change in follow(client, SharedVolumeResource, namespace="*"):
        match change:
            case Listed(objects):
                controller.listed([read_owner(one) for one in objects])
            case Applied(found):
                controller.seen(read_owner(found))
            case Deleted(found):
                controller.gone(read_owner(found))


async def _watch_volumes(client: AsyncClient, controller: SharedVolumeController) -> None:
    async for change in follow(client, PersistentVolume, labels=_LABELS):
        match change:
            case Listed():
                controller.look_at_all()
            case Applied(found):
                _touch(controller, _owner_of_volume(found))
            case Deleted(found):
                _touch(controller, _owner_of_volume(found))
                controller.room_made()


async def _watch_claims(client: AsyncClient, controller: SharedVolumeController) -> None:
    async for change in follow(client, PersistentVolumeClaim, namespace="*", labels=_LABELS):
        match change:
            case Listed():
                controller.look_at_all()
            case Applied(found):
                _touch(controller, _owner_of_claim(found.to_dict()["metadata"]))
            case Deleted(found):
                _touch(controller, _owner_of_claim(found.to_dict()["metadata"]))
                controller.room_made()


async def watch_limits(client: AsyncClient, controller: SharedVolumeController) -> None:
    """Tell the controller of each namespace whose annotation has become another, until cancelled."""
    limits: dict[str, str | None] = {}

    def compare(namespace: Namespace) -> None:
        name, limit = _limit(namespace)
        if limits.get(name, limit) != limit:
            controller.limits_changed(name)
        limits[name] = limit

    async for change in follow(client, Namespace):
        match change:
            case Listed(objects):
                for one in objects:
                    compare(one)
            case Applied(found):
                compare(found)
            case Deleted(found):
                limits.pop(_limit(found)[0], None)


def _limit(namespace: Namespace) -> tuple[str, str | None]:
    metadata = namespace.metadata
    name = (metadata and metadata.name) or ""
    return name, ((metadata and metadata.annotations) or {}).get(ANNOTATION)


def _touch(controller: SharedVolumeController, owner: Owner | None) -> None:
    if owner:
        controller.touched(owner)


def _owner_of_volume(volume: PersistentVolume) -> Owner | None:
    """Whose volume it is: by the claim that it is for, whatever has become of its labels, else by these."""
    body: Json = volume.to_dict()
    reference: Json | None = (body.get("spec") or {}).get("claimRef")
    return _owner_of_claim(reference) if reference else read_marked_volume(body).marks.owner


def _owner_of_claim(name: Json) -> Owner | None:
    return owner_of_claim(name.get("namespace", ""), name.get("name", ""))
