"""Controllers that follow the watches of the embedded API server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import PersistentVolumeClaimSpec, VolumeResourceRequirements
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass as StorageClassResource
from lightkube.types import PatchType
from prometheus_client import CollectorRegistry
from tests.unit.provisioning.world import EFS, PROVISIONER, World

from kube_efs.controllers.claims import ClaimController, watch_claims, watch_classes
from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.controllers.expansions import ExpansionController
from kube_efs.controllers.root_volumes import RootVolumes
from kube_efs.controllers.tunnel_targets import TargetsReports, TunnelTargetsController
from kube_efs.controllers.volumes import VolumeController, watch_volumes
from kube_efs.kube.building import build_volume
from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import NfsSource, Volume
from kube_efs.provisioning.backends.tunnel import TunnelBackend
from kube_efs.provisioning.engine import Engine
from kube_efs.provisioning.expansion import Expansions
from kube_efs.provisioning.guards import Guards
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import ControllerMetrics

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]


class _Poked(TunnelTargetsController):
    """Counts the notifications of changed root volumes."""

    pokes = 0

    def reconcile_soon(self) -> None:
        self.pokes += 1


async def _nobody_uses(_: str) -> None:
    return


class Scene:
    """The controllers around the engine, with directories that need no worker pods."""

    def __init__(self, client: AsyncClient, recorder: EventRecorder) -> None:
        world = World()
        self.client = client
        self.index = world.index
        self.index.classes = {}
        self.folders = world.folders
        backend = TunnelBackend(
            provisioner=PROVISIONER,
            index=world.index,
            directories=world.folders,
            copies=world.copies,
            record_choice=world.record_choice,
        )
        engine = Engine(
            index=world.index,
            backends=[backend],
            store=VolumeStore(client),
            guards=Guards(index=world.index, store=VolumeStore(client)),
        )
        events, metrics = (
            ProvisioningEvents(ClaimStore(client), recorder),
            ControllerMetrics(CollectorRegistry()),
        )
        self.claims = ClaimController(
            engine=engine,
            index=world.index,
            events=events,
            metrics=metrics,
            backoff_seconds=3600,
            duties=Duties(CollectorRegistry()),
        )
        self.volumes = VolumeController(
            engine=engine,
            index=world.index,
            events=events,
            metrics=metrics,
            backoff_seconds=3600,
            duties=Duties(CollectorRegistry()),
        )
        self.expansions = ExpansionController(
            expansions=Expansions(
                claims=ClaimStore(client), volumes=VolumeStore(client), serves=engine.serves
            ),
            events=events,
            backoff_seconds=3600,
            duties=Duties(CollectorRegistry()),
            begin=asyncio.Event(),
        )
        roots = RootVolumes(
            client, world.index, namespace="default", provisioner=PROVISIONER, release=_nobody_uses
        )
        self.targets = _Poked(
            client,
            world.index,
            roots,
            names=replace(OPENSHIFT_EFS_STUNNEL, namespace="default"),
            base_port=20490,
            changed=self.claims.file_systems_changed,
            reports=TargetsReports(unknown_ports=lambda _: None, check_size=lambda *_: None),
        )
        self.volumes_listed, self.classes_listed, self.claims_listed = (asyncio.Event() for _ in range(3))

    def watches(self) -> list[Coroutine[Any, Any, None]]:
        return [
            watch_volumes(self.client, self.volumes, self.targets.reconcile_soon, self.volumes_listed),
            watch_classes(self.client, self.index, self.claims, self.classes_listed),
            watch_claims(
                self.client, self.claims, self.expansions, self.targets.reconcile_soon, self.claims_listed
            ),
        ]

    async def made_for(self) -> set[str]:
        """The claims with volumes in the cluster."""
        found = set()
        async for volume in self.client.list(PersistentVolume):
            if volume.spec and volume.spec.claimRef:
                found.add(volume.spec.claimRef.name or "")
        return found


@asynccontextmanager
async def running(client: AsyncClient) -> AsyncIterator[Scene]:
    async with EventRecorder(client, component="kube-efs-controller") as recorder:
        scene = Scene(client, recorder)
        async with scene.claims, scene.expansions, scene.volumes:
            tasks = [asyncio.create_task(watch) for watch in scene.watches()]
            try:
                await scene.volumes_listed.wait()
                await scene.classes_listed.wait()
                yield scene
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def claim(
    name: str, *, storage_class: str = "efs", labels: dict[str, str] | None = None
) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            annotations={"volume.kubernetes.io/storage-provisioner": EFS.provisioner},
        ),
        spec=PersistentVolumeClaimSpec(
            accessModes=["ReadWriteMany"],
            storageClassName=storage_class,
            resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
            selector=LabelSelector(matchLabels=labels or {"volume_name": name}),
        ),
    )


def storage_class(**parameters: str) -> StorageClassResource:
    return StorageClassResource(
        metadata=ObjectMeta(name="efs"),
        provisioner=EFS.provisioner,
        parameters=parameters,
        reclaimPolicy="Delete",
    )


AUTO = storage_class(default_file_system_id="auto")


async def test_existing_and_new_claims_get_volumes(kube: AsyncClient, eventually: Eventually) -> None:
    await kube.create(AUTO)
    await kube.create(claim("early"))
    async with running(kube) as here:
        await kube.create(claim("late"))

        async def is_done() -> bool:
            return await here.made_for() == {"early", "late"}

        await eventually(is_done)


async def test_claim_waits_for_its_class(kube: AsyncClient, eventually: Eventually) -> None:
    async with running(kube) as here:
        await kube.create(claim("data"))
        await asyncio.sleep(0.1)
        assert await here.made_for() == set()
        await kube.create(AUTO)
        await eventually(here.made_for)


async def test_replaced_class_serves_its_refused_claims(kube: AsyncClient, eventually: Eventually) -> None:
    await kube.create(storage_class())
    async with running(kube) as here:
        await kube.create(claim("data"))

        async def rejected() -> bool:
            found = await kube.get(PersistentVolumeClaim, "data", namespace="default")
            annotations = (found.metadata and found.metadata.annotations) or {}
            return annotations.get("efs-stunnel.gnuthought.com/rejected") == "true"

        await eventually(rejected)
        # The parameters of a class are immutable.
        await kube.delete(StorageClassResource, "efs")
        await kube.create(AUTO)
        await eventually(here.made_for)
        assert not await rejected()


async def test_deleted_class_is_forgotten(kube: AsyncClient, eventually: Eventually) -> None:
    await kube.create(AUTO)
    async with running(kube) as here:
        assert set(here.index.classes) == {"efs"}
        await kube.delete(StorageClassResource, "efs")

        async def is_forgotten() -> bool:
            return not here.index.classes

        await eventually(is_forgotten)


async def test_volumes_are_indexed_and_forgotten(kube: AsyncClient, eventually: Eventually) -> None:
    async with running(kube) as here:
        await kube.create(build_volume(_volume("pv")))

        async def known() -> bool:
            return "pv" in here.index.volumes

        async def unknown() -> bool:
            return "pv" not in here.index.volumes

        await eventually(known)
        await _delete_volume(kube, "pv")
        await eventually(unknown)
        assert here.targets.pokes == 0


async def test_released_volume_is_removed_with_its_directory(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await kube.create(AUTO)
    async with running(kube) as here:
        await kube.create(claim("data"))
        await eventually(here.made_for)
        assert len(here.folders.there) == 1
        (name,) = here.index.volumes
        await kube.patch(
            PersistentVolume, name, {"metadata": {"finalizers": None}}, patch_type=PatchType.MERGE
        )
        released = {"status": {"phase": "Released"}}
        await kube.patch(PersistentVolume.Status, name, released, patch_type=PatchType.MERGE)

        async def is_gone() -> bool:
            return not await here.made_for() and not here.folders.there

        await eventually(is_gone)


@pytest.mark.parametrize("kind", ["claim", "volume"])
async def test_deleted_root_is_reported_to_the_targets(
    kube: AsyncClient, eventually: Eventually, kind: str
) -> None:
    async with running(kube) as here:
        if kind == "claim":
            await kube.create(claim("root", storage_class=ROOT_CLASS, labels={"root_key": "k"}))
            unprotected = {"metadata": {"finalizers": None}}
            await kube.patch(PersistentVolumeClaim, "root", unprotected, namespace="default")
            await kube.delete(PersistentVolumeClaim, "root", namespace="default")
        else:
            await kube.create(build_volume(replace(_volume("root"), storage_class=ROOT_CLASS)))
            await _delete_volume(kube, "root")

        async def is_poked() -> bool:
            return here.targets.pokes > 0

        await eventually(is_poked)


def _volume(name: str) -> Volume:
    return Volume(
        name=name, nfs=NfsSource(server="127.0.0.1", path="/team/data"), access_modes=("ReadWriteMany",)
    )


async def _delete_volume(kube: AsyncClient, name: str) -> None:
    await _unprotect_volume(kube, name)
    await kube.delete(PersistentVolume, name)


async def _unprotect_volume(kube: AsyncClient, name: str) -> None:
    """Remove the finalizer, as the cluster's protection controller does when no claim is bound."""
    await kube.patch(PersistentVolume, name, {"metadata": {"finalizers": None}}, patch_type=PatchType.MERGE)
