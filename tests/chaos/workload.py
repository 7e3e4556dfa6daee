"""All kinds of work on a cluster, repeated and concurrent."""

import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from lightkube import ApiError
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import PersistentVolume, Pod
from tests.chaos.asking import PATIENCE_SECONDS, persistently
from tests.chaos.kept import KeptVolumes
from tests.chaos.measuring import pids_of
from tests.chaos.planting import planted
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.directory_steps import Claims

from fake_efs.errors import EfsError, PlatformError
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import FileSystemId, ZoneName
from kube_efs.model.errors import KubeEfsError
from kube_efs.model.names import WORKER_LABELS
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs_lab.clients import TunnelClient as NfsClient
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.program import Program

# A worker that failed, as its tunnel was killed, is kept for people to look at: the newest of a file system.
_FAILED_KEPT: Final = 3
_MOST_SECONDS_BETWEEN_KILLS: Final = 5.0
_MOST_SECONDS_OF_A_START: Final = 1.0

_numbers = itertools.count(1)


class Workload:
    """``done`` counts completed work; ``failures`` lists what timed out.

    ``classes`` are the classes of claims by kind; ``prepare`` creates them. ``programs`` are the processes to
    kill.
    """

    def __init__(
        self, cluster: EmbeddedCluster, claims: Claims, kept: KeptVolumes, chance: random.Random
    ) -> None:
        self.done: Counter[str] = Counter()
        self.failures: list[str] = []
        self.classes: Mapping[str, str] = {}
        self.programs: Sequence[Program] = (cluster.controller, cluster.tunnel, cluster.node)
        self._cluster = cluster
        self._claims = claims
        self._kept = kept
        self._chance = chance
        self._refused = ""

    async def prepare(self) -> None:
        """Create the classes for claims, and one that is refused."""
        client, system = self._cluster.client, self._cluster.file_system_ids[0]
        self.classes = {
            "tunnel": await steps.new_class(client, default_file_system_id="auto"),
            "directory": await directory_steps.new_class(client, gidMin="40000", gidMax="40060"),
            "csi": await csi_steps.new_class(
                client, parameters={"fileSystemId": system, "password": planted("class-parameter")}
            ),
        }
        wrong = {"fileSystemId": system, "uid": "-1", "password": planted("class-parameter")}
        self._refused = await csi_steps.new_class(client, parameters=wrong)

    async def run(self, seconds: float, *, roughly: bool) -> None:
        """Do all work for that time; ``roughly`` also ends and kills the processes."""
        works = [
            self._claim,
            self._claim,
            self._claim_what_is_refused,
            self._use,
            self._hold_tunnel,
            self._hold_tunnel,
            self._change_targets,
            self._kept_file,
        ]
        kills = [self._restart, self._kill_stunnel, self._kill_worker] if roughly else []
        ends = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for work in [*works, *kills]:
                tasks.create_task(self._repeat(work, ends))
        for program in self.programs:
            await program.ready()

    async def quiet(self) -> None:
        """Wait until nothing of the work is left; the rest is a failure."""
        left: list[str] = []

        async def is_quiet() -> bool:
            left[:] = await self._left()
            return not left

        try:
            await steps.eventually(is_quiet, what="quiet", seconds=PATIENCE_SECONDS, pause_seconds=0.5)
        except AssertionError:
            self.failures.append(f"left: {', '.join(left)}")
        await self._remove_failed_workers()

    async def _left(self) -> list[str]:
        client = self._cluster.client
        kept = {one.volume.name for one in self._kept.volumes}
        volumes = [one async for one in client.list(PersistentVolume)]
        made = [one for one in volumes if one.spec and one.spec.storageClassName != ROOT_CLASS]
        pods = [one async for one in client.list(Pod, namespace="*")]
        failed = [one for one in pods if _is_failed_worker(one)]
        about = [one.metadata for one in made if not one.metadata or one.metadata.name not in kept]
        about += [one.metadata for one in pods if one not in failed]
        most = _FAILED_KEPT * len(self._cluster.file_system_ids)
        about += [one.metadata for one in failed[most:]]
        return await self._tunnels_left() + [str(one and one.name) for one in about]

    async def _remove_failed_workers(self) -> None:
        """Delete failed worker pods and their files, as administrators do."""
        pods = [one async for one in self._cluster.client.list(Pod, namespace="*")]
        for found in (one.metadata for one in pods if one.metadata and _is_failed_worker(one)):
            await self._cluster.client.delete(Pod, found.name or "", namespace=found.namespace or "")
            folder = self._cluster.folder / "kubelet" / "pods" / str(found.uid)

            async def is_gone(folder: Path = folder) -> bool:
                return not await asyncio.to_thread(folder.exists)

            await steps.eventually(is_gone, what=f"{folder} is gone")

    async def _tunnels_left(self) -> list[str]:
        """The tunnels on demand that no remaining volume holds."""
        holders = {one.holder for one in self._kept.volumes}
        async with connect_tunnels(self._cluster.tunnel_socket) as tunnels:
            found = await tunnels.tunnels()
        return [
            f"{one.name} of {sorted(one.holders - holders)}"
            for one in found
            if not one.holders or one.holders - holders
        ]

    async def _repeat(self, work: Callable[[], Awaitable[None]], ends: float) -> None:
        name = work.__name__.strip("_").replace("_", " ")
        while time.monotonic() < ends:
            try:
                async with asyncio.timeout(2 * PATIENCE_SECONDS):
                    await work()
                self.done[name] += 1
            except (AssertionError, ApiError, EfsError, KubeEfsError, TimeoutError) as error:
                self.failures.append(f"{name}: {type(error).__name__} {error}")

    async def _claim(self) -> None:
        """Create and delete a claim of each provisioner."""
        names = {kind: f"{kind}-{next(_numbers)}" for kind in self.classes}
        for kind, name in names.items():
            labels = {"volume_name": name.replace("-", "_")} if kind == "tunnel" else None
            body = steps.claim(self._claims.namespace, name, self.classes[kind], labels)
            await self._cluster.client.create(body)
        volumes = [await self._claims.bound(name) for name in names.values()]
        await self._claims.delete(*names.values())
        for volume in volumes:
            await steps.gone(self._cluster.client, volume.name)

    async def _claim_what_is_refused(self) -> None:
        """Create a claim that is refused with an event."""
        name = f"refused-{next(_numbers)}"
        await self._claims.create(self._refused, name)
        await steps.warning(self._cluster.client, self._claims.namespace, name)
        await self._claims.delete(name)

    async def _kept_file(self) -> None:
        """Write another file in a volume that stays."""
        await self._kept.write()
        await asyncio.sleep(self._chance.random())

    async def _use(self) -> None:
        """Run a pod that writes to a volume of the CSI driver."""
        name = f"used-{next(_numbers)}"
        await self._claims.provisioned(self.classes["csi"], name)
        client, namespace = self._cluster.client, self._claims.namespace
        await client.create(_pod(namespace, name))

        async def has_ended() -> bool:
            found = await client.get(Pod, name, namespace=namespace)
            assert not (found.status and found.status.phase == "Failed"), found.status
            return bool(found.status and found.status.phase == "Succeeded")

        await steps.eventually(has_ended, what=f"pod {name} has written", seconds=PATIENCE_SECONDS)
        await client.delete(Pod, name, namespace=namespace)
        volume = await self._claims.bound(name)
        await self._claims.delete(name)
        await steps.gone(client, volume.name)

    async def _hold_tunnel(self) -> None:
        """Request, use and release a tunnel on demand."""
        zones = [None, *(ZoneName(subnet.zone) for subnet in self._cluster.efs.subnets)]
        system = self._chance.choice(self._cluster.file_system_ids)
        spec = TunnelSpec(file_system_id=system, zone=self._chance.choice(zones))
        holder = Holder(f"work {next(_numbers)}")
        async with connect_tunnels(self._cluster.tunnel_socket) as client:
            port = await persistently(lambda: client.ensure(spec, holder))
            await persistently(lambda: NfsClient(port).names(parse_directory("/")))
            await persistently(lambda: client.release(holder))

    async def _change_targets(self) -> None:
        """Create and delete a file system, which changes the ConfigMap."""
        system = FileSystemId(await self._cluster.efs.create_file_system(f"soak-{next(_numbers)}"))
        await steps.port_of(self._cluster, system)
        await self._cluster.efs.delete_file_system(system)

        async def is_gone() -> bool:
            with suppress(ApiError):
                return (await steps.published_targets(self._cluster)).port_of(system) is None
            return False

        await steps.eventually(is_gone, what=f"{system} has no port", seconds=PATIENCE_SECONDS)

    async def _restart(self) -> None:
        """End or kill a process, perhaps while it starts, and start it again."""
        program = self._chance.choice(self.programs)
        await (program.kill() if self._chance.random() < 0.7 else program.stop())
        starting = asyncio.create_task(program.start())
        if self._chance.random() < 0.3:
            await asyncio.sleep(self._chance.random() * _MOST_SECONDS_OF_A_START)
            if program.running:
                await program.kill()
        with suppress(PlatformError):
            await starting
        if not program.running:
            await program.start()
        if self._chance.random() < 0.5:
            await program.ready()
        await asyncio.sleep(self._chance.random() * _MOST_SECONDS_BETWEEN_KILLS)

    async def _kill_stunnel(self) -> None:
        """Kill all stunnels, as the end of their container does, or one of them."""
        await self._kill("stunnel", one=self._chance.random() < 0.5)
        await asyncio.sleep(self._chance.random() * 4 * _MOST_SECONDS_BETWEEN_KILLS)

    async def _kill_worker(self) -> None:
        """Kill a worker, if there is one."""
        await self._kill("kube-efs worker")
        await asyncio.sleep(self._chance.random() * _MOST_SECONDS_BETWEEN_KILLS)

    async def _kill(self, name: str, *, one: bool = False) -> None:
        pids = await asyncio.to_thread(pids_of, name, self._cluster.folder)
        for pid in [self._chance.choice(pids)] if one and pids else pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.done[f"killed {name}"] += 1


def _is_failed_worker(pod: Pod) -> bool:
    labels = (pod.metadata and pod.metadata.labels) or {}
    return labels.items() >= WORKER_LABELS.items() and bool(pod.status and pod.status.phase == "Failed")


def _pod(namespace: str, claim: str) -> Pod:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "writer",
                    "image": "busybox",
                    "command": ["/bin/sh", "-c", "date > /data/file && cat /data/file"],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }
    return cast("Pod", from_dict(body))
