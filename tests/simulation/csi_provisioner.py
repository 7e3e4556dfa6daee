"""csi-provisioner: it serves claims with calls to the CSI service of the controller in its pod.

It is a separate process in the same pod, with its own Lease. It repeats a call with the same name until it
gets a clear answer, even if the claim was deleted. Then it creates the volume object. It removes a released
volume with DeleteVolume, and then deletes its object. After its end, no other process knows its unfinished
calls.

A call that has reached the driver's process is carried out even if its caller has ended. It is cancelled
after its timeout. When the driver is killed, its calls fail.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from grpc import StatusCode
from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import PersistentVolume
from tests.simulation.apiserver import ApiServer, Body
from tests.simulation.containers import Container, World
from tests.simulation.network import Network
from tests.simulation.replica import NAMESPACE, Replica
from tests.simulation.virtual import Process, State, settle

from kube_efs.controllers.process import _while_leading
from kube_efs.csi.codes import code_of
from kube_efs.csi.protocol import csi_pb2
from kube_efs.kube.leases import Leadership, LeaseTerms
from kube_efs.model.volumes import DRIVER

_LEASE = "efs-csi-aws-com"
_FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
_CALL_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_SLOWEST_LOOK_SECONDS = 3.0
_BACKOFF_SECONDS = (1.0, 10.0)
# After these codes, the volume may exist.
_UNCLEAR = {
    StatusCode.CANCELLED,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.UNAVAILABLE,
    StatusCode.ABORTED,
}
_CONFLICT = 409
_CAPABILITY = csi_pb2.VolumeCapability(
    mount=csi_pb2.VolumeCapability.MountVolume(),
    access_mode=csi_pb2.VolumeCapability.AccessMode(
        mode=csi_pb2.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER
    ),
)


class _CallFailed(Exception):
    """A call failed."""

    def __init__(self, code: StatusCode, text: str = "") -> None:
        super().__init__(f"{code.name} {text}")
        self.is_unclear = code in _UNCLEAR


class CsiProvisioner(Container):
    """The sidecar of one replica."""

    def __init__(self, world: World, replica: Replica, rng: random.Random) -> None:
        super().__init__(world, f"{replica.name}-sidecar")
        self._replica = replica
        self._rng = rng
        self._server: ApiServer = world.server
        self._busy: set[str] = set()
        self._serving: list[asyncio.Task[None]] = []

    def _end(self) -> None:
        super()._end()
        self._busy = set()
        # Its connection breaks, which cancels its calls in the driver.
        for serving in self._serving:
            self._world.loop.after(0.01, serving.cancel)
        self._serving = []

    async def _main(self, process: Process) -> None:
        world = self._world
        network = Network(world.loop, process, world.server, world.request_faults, world.history)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(network.client())
            terms = LeaseTerms(namespace=NAMESPACE, name=_LEASE, identity=process.name)
            leadership = Leadership(client, terms, world.loop.time)
            await leadership.acquire()
            world.history.note("{} leads", process.name)
            await _while_leading(leadership, self._work(client), _LEASE)

    async def _work(self, client: AsyncClient) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._rng.uniform(0.1, _LOOK_SECONDS))
                for claim in filter(self._wants_volume, self._server.all("persistentvolumeclaims")):
                    self._begin(tasks, claim["metadata"]["uid"], self._provision(client, claim))
                for volume in filter(_is_to_go, self._server.all("persistentvolumes")):
                    self._begin(tasks, volume["metadata"]["uid"], self._remove(client, volume))
                for volume in filter(_is_released, self._server.all("persistentvolumes")):
                    self._release(volume["metadata"]["name"])

    def _begin(self, tasks: asyncio.TaskGroup, uid: str, work: Coroutine[Any, Any, None]) -> None:
        if uid in self._busy:
            work.close()
            return
        self._busy.add(uid)
        tasks.create_task(work).add_done_callback(lambda _: self._busy.discard(uid))

    # --- claims

    def _wants_volume(self, claim: Body) -> bool:
        class_ = self._server.find("storageclasses", claim["spec"]["storageClassName"])
        return (
            class_ is not None
            and class_["provisioner"] == DRIVER
            and DRIVER in (claim["metadata"].get("annotations") or {}).values()
            and not claim["spec"].get("volumeName")
            and "deletionTimestamp" not in claim["metadata"]
        )

    def _is_there(self, claim: Body) -> bool:
        meta = claim["metadata"]
        found = self._server.find("persistentvolumeclaims", meta["name"], meta["namespace"])
        return found is not None and found["metadata"]["uid"] == meta["uid"] and self._wants_volume(found)

    async def _provision(self, client: AsyncClient, claim: Body) -> None:
        meta, is_unclear = claim["metadata"], False
        class_ = self._server.find("storageclasses", claim["spec"]["storageClassName"]) or {}
        name = f"pvc-{meta['uid']}"
        request = csi_pb2.CreateVolumeRequest(
            name=name,
            capacity_range=csi_pb2.CapacityRange(required_bytes=1 << 30),
            volume_capabilities=[_CAPABILITY],
            parameters={
                **class_["parameters"],
                "csi.storage.k8s.io/pvc/name": meta["name"],
                "csi.storage.k8s.io/pvc/namespace": meta["namespace"],
                "csi.storage.k8s.io/pv/name": name,
            },
        )
        while True:
            # Its view of the cluster is slightly late.
            await asyncio.sleep(self._rng.uniform(0.0, _SLOWEST_LOOK_SECONDS))
            if not is_unclear and not self._is_there(claim):
                return
            try:
                made = (await self._call("CreateVolume", request)).volume
            except _CallFailed as error:
                is_unclear = error.is_unclear
                await self._back_off("CreateVolume", name, error)
            else:
                break
        self._world.history.note("{} got {} for {}", self.process.name, made.volume_id, name)
        await self._until_done("volume", name, lambda: client.create(_volume(claim, class_, made)))

    # --- volumes

    async def _remove(self, client: AsyncClient, volume: Body) -> None:
        name = volume["metadata"]["name"]
        request = csi_pb2.DeleteVolumeRequest(volume_id=volume["spec"]["csi"]["volumeHandle"])
        while True:
            await asyncio.sleep(self._rng.uniform(0.0, _SLOWEST_LOOK_SECONDS))
            live = self._server.find("persistentvolumes", name)
            if live is None or live["metadata"]["uid"] != volume["metadata"]["uid"] or not _is_to_go(live):
                return
            try:
                await self._call("DeleteVolume", request)
            except _CallFailed as error:
                await self._back_off("DeleteVolume", name, error)
            else:
                break
        self._world.history.note("the driver has removed {} for {}", name, self.process.name)
        await self._until_done("deletion of volume", name, lambda: client.delete(PersistentVolume, name))
        self._release(name)

    def _release(self, name: str) -> None:
        volume = self._server.find("persistentvolumes", name)
        if volume is not None and _FINALIZER in (volume["metadata"].get("finalizers") or ()):
            self._server.update(
                "persistentvolumes", name, lambda body: body["metadata"]["finalizers"].remove(_FINALIZER)
            )

    # --- calls

    async def _until_done(self, what: str, name: str, ask: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await ask()
            except ApiError as error:
                if error.status.code in {404, _CONFLICT}:
                    return
                await self._back_off(what, name, error)
            except Exception as error:  # noqa: BLE001 - of the client's transport
                await self._back_off(what, name, error)
            else:
                return

    async def _back_off(self, what: str, name: str, error: Exception) -> None:
        self._world.history.note("{}: {} of {} failed: {}", self.process.name, what, name, error)
        await asyncio.sleep(self._rng.uniform(*_BACKOFF_SECONDS))

    async def _served(self, name: str, method: str, call: Coroutine[Any, Any, Any]) -> object:
        """The answer, or the error that gRPC makes of an exception."""
        try:
            return await call
        except Exception as error:  # noqa: BLE001 - what is unexpected is a fault
            code = code_of(error)
            if code is None:
                self._world.invariants.fail(f"{name}: {method} raises {error!r}")
            return _CallFailed(code or StatusCode.INTERNAL, str(error))

    async def _call(self, method: str, request: Any) -> Any:
        """The answer of the driver in this pod; raises _CallFailed."""
        replica, loop = self._replica, self._world.loop
        driver, process = replica.driver, replica.process
        if driver is None or process.state is State.DEAD:
            raise _CallFailed(StatusCode.UNAVAILABLE, "nobody listens")
        answer: asyncio.Future[Any] = loop.create_future()

        async def serve() -> None:
            outcome = await self._served(process.name, method, getattr(driver, method)(request, None))
            loop.after(0.01, settle, answer, outcome)

        serving = process.start(loop, serve())
        self._serving.append(serving)
        replica.calls.append(answer)
        try:
            await asyncio.wait({answer}, timeout=_CALL_SECONDS)
        finally:
            self._serving.remove(serving)
            if answer in replica.calls:
                replica.calls.remove(answer)
            if not answer.done():
                serving.cancel()
        if not answer.done():
            raise _CallFailed(StatusCode.DEADLINE_EXCEEDED, "no answer in time")
        try:
            return answer.result()
        except ConnectionError as error:
            raise _CallFailed(StatusCode.UNAVAILABLE, str(error)) from error


def _volume(claim: Body, class_: Body, made: csi_pb2.Volume) -> Any:
    meta = claim["metadata"]
    return PersistentVolume.from_dict(
        {
            "metadata": {
                "name": f"pvc-{meta['uid']}",
                "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
                "finalizers": [_FINALIZER],
            },
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": claim["spec"]["accessModes"],
                "storageClassName": class_["metadata"]["name"],
                "persistentVolumeReclaimPolicy": class_["reclaimPolicy"],
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": meta["namespace"],
                    "name": meta["name"],
                    "uid": meta["uid"],
                },
                "csi": {
                    "driver": DRIVER,
                    "volumeHandle": made.volume_id,
                    "volumeAttributes": dict(made.volume_context),
                },
            },
        }
    )


def _is_to_go(volume: Body) -> bool:
    meta = volume["metadata"]
    return (
        _is_own(volume)
        and volume["status"]["phase"] == "Released"
        and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
        and ("deletionTimestamp" not in meta or _FINALIZER in (meta.get("finalizers") or ()))
    )


def _is_released(volume: Body) -> bool:
    return (
        _is_own(volume)
        and "deletionTimestamp" in volume["metadata"]
        and _FINALIZER in (volume["metadata"].get("finalizers") or ())
        and volume["status"]["phase"] != "Bound"
        and not _is_to_go(volume)
    )


def _is_own(volume: Body) -> bool:
    annotations = volume["metadata"].get("annotations") or {}
    return annotations.get("pv.kubernetes.io/provisioned-by") == DRIVER
