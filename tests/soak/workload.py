"""Everything that happens on a cluster, over and over, and at once."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from lightkube import ApiError
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import PersistentVolume, Pod
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.directory_steps import Claims

from kube_efs.local.cluster import EmbeddedCluster
from kube_efs.local.program import Program
from kube_efs.model.errors import KubeEfsError
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.provisioning.worker_pods import LABELS as WORKER_LABELS
from kube_efs.tunnels.client import TunnelClient, connect_tunnels
from kube_efs.tunnels.demand_specs import Holder, TunnelSpec

# An orphan of a node that was killed is forgotten after two reconciliations.
_PATIENCE_SECONDS: Final = 180.0
_BETWEEN_KILLS_SECONDS: Final = 4.0
# A worker that failed, as its tunnel was killed, is kept for people to look at: the newest of a file system.
_FAILED_KEPT: Final = 3

_numbers = itertools.count(1)


class Workload:
    """``done`` counts what was done; ``failures`` say what never came to be."""

    def __init__(self, cluster: EmbeddedCluster, socket: Path, claims: Claims) -> None:
        self.done: Counter[str] = Counter()
        self.failures: list[str] = []
        self._cluster = cluster
        self._socket = socket
        self._claims = claims
        self._classes: Mapping[str, str] = {}

    async def prepare(self) -> None:
        """Make the classes that everything is claimed of."""
        client, system = self._cluster.client, self._cluster.file_system_ids[0]
        self._classes = {
            "tunnel": await steps.new_class(client, default_file_system_id="auto"),
            "directory": await directory_steps.new_class(client, gidMin="40000", gidMax="40020"),
            "csi": await csi_steps.new_class(client, parameters={"fileSystemId": system}),
        }

    async def run(self, seconds: float, *, roughly: bool) -> None:
        """Do all of it for so long; ``roughly`` ends and kills the processes meanwhile."""
        works = [
            self._claim,
            self._claim,
            self._use,
            self._hold_tunnel,
            self._hold_tunnel,
            self._change_targets,
        ]
        ends = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for work in [*works, *([self._restart] if roughly else [])]:
                tasks.create_task(self._repeat(work, ends))

    async def quiet(self) -> None:
        """Wait until nothing is left of it; what stays is a failure."""
        left: list[str] = []

        async def is_quiet() -> bool:
            left[:] = await self._left()
            return not left

        try:
            await steps.eventually(is_quiet, what="quiet", seconds=_PATIENCE_SECONDS, pause_seconds=0.5)
        except AssertionError:
            self.failures.append(f"left: {', '.join(left)}")

    async def _left(self) -> list[str]:
        client = self._cluster.client
        volumes = [one async for one in client.list(PersistentVolume)]
        made = [one for one in volumes if one.spec and one.spec.storageClassName != ROOT_CLASS]
        pods = [one async for one in client.list(Pod, namespace="*")]
        failed = [one for one in pods if _is_failed_worker(one)]
        about = [one.metadata for one in made]
        about += [one.metadata for one in pods if one not in failed]
        kept = _FAILED_KEPT * len(self._cluster.file_system_ids)
        about += [one.metadata for one in failed[kept:]]
        async with connect_tunnels(self._socket) as tunnels:
            names = [tunnel.name for tunnel in await tunnels.tunnels()]
        return names + [str(one and one.name) for one in about]

    async def _repeat(self, work: Callable[[], Awaitable[None]], ends: float) -> None:
        name = work.__name__.strip("_").replace("_", " ")
        while time.monotonic() < ends:
            try:
                async with asyncio.timeout(2 * _PATIENCE_SECONDS):
                    await work()
                self.done[name] += 1
            except (AssertionError, ApiError, KubeEfsError, TimeoutError) as error:
                self.failures.append(f"{name}: {type(error).__name__} {error}")

    async def _claim(self) -> None:
        """A claim of each provisioner, made and deleted."""
        names = {kind: f"{kind}-{next(_numbers)}" for kind in self._classes}
        for kind, name in names.items():
            labels = {"volume_name": name.replace("-", "_")} if kind == "tunnel" else None
            body = steps.claim(self._claims.namespace, name, self._classes[kind], labels)
            await self._cluster.client.create(body)
        volumes = [await self._claims.bound(name) for name in names.values()]
        await self._claims.delete(*names.values())
        for volume in volumes:
            await steps.gone(self._cluster.client, volume.name)

    async def _use(self) -> None:
        """A pod that writes to a volume of the CSI driver."""
        name = f"used-{next(_numbers)}"
        await self._claims.provisioned(self._classes["csi"], name)
        client, namespace = self._cluster.client, self._claims.namespace
        await client.create(_pod(namespace, name))

        async def has_ended() -> bool:
            found = await client.get(Pod, name, namespace=namespace)
            assert not (found.status and found.status.phase == "Failed"), found.status
            return bool(found.status and found.status.phase == "Succeeded")

        await steps.eventually(has_ended, what=f"pod {name} has written", seconds=_PATIENCE_SECONDS)
        await client.delete(Pod, name, namespace=namespace)
        volume = await self._claims.bound(name)
        await self._claims.delete(name)
        await steps.gone(client, volume.name)

    async def _hold_tunnel(self) -> None:
        """A tunnel on demand, asked for, used and released."""
        zones = [None, *(subnet.zone for subnet in self._cluster.efs.subnets)]
        system = random.choice(self._cluster.file_system_ids)
        spec = TunnelSpec(file_system_id=system, zone=random.choice(zones))
        holder = Holder(f"soak {next(_numbers)}")
        async with connect_tunnels(self._socket) as client:
            port = await _persistently(lambda: client.ensure(spec, holder))
            await _persistently(lambda: _list_root(port))
            await _persistently(lambda: _release(client, holder))

    async def _change_targets(self) -> None:
        """A file system comes, and with it another text of the ConfigMap, and goes."""
        system = await self._cluster.efs.create_file_system(f"soak-{next(_numbers)}")
        await steps.port_of(self._cluster, system)
        await self._cluster.efs.delete_file_system(system)

        async def is_gone() -> bool:
            with suppress(ApiError):
                return (await steps.published_targets(self._cluster)).port_of(system) is None
            return False

        await steps.eventually(is_gone, what=f"{system} has no port", seconds=_PATIENCE_SECONDS)

    async def _restart(self) -> None:
        """A process ends, in order or not, and comes back."""
        program: Program = random.choice([self._cluster.controller, self._cluster.tunnel, self._cluster.node])
        await (program.kill() if random.random() < 0.5 else program.stop())
        await program.start()
        await program.ready()
        await asyncio.sleep(_BETWEEN_KILLS_SECONDS)


def _is_failed_worker(pod: Pod) -> bool:
    labels = (pod.metadata and pod.metadata.labels) or {}
    return labels.items() >= WORKER_LABELS.items() and bool(pod.status and pod.status.phase == "Failed")


async def _persistently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The answer, asked again while nobody is there to give it."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                return await ask()
            except (KubeEfsError, OSError):
                await asyncio.sleep(0.2)


async def _release(client: TunnelClient, holder: Holder) -> None:
    await client.release(holder)


async def _list_root(port: int) -> None:
    process = await asyncio.create_subprocess_exec(
        "nfs-ls",
        f"nfs://127.0.0.1//?version=4&nfsport={port}&mountport={port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(20):
            if await process.wait():
                raise ConnectionError(f"nobody answers at port {port}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


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
