"""A large cluster on one machine: a real control plane, moto, the controller, and the agents of all nodes."""

import asyncio
import os
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import yaml
from bench.scale.api_server import ApiServerCounters
from lightkube import AsyncClient
from lightkube.models.core_v1 import (
    CSIPersistentVolumeSource,
    NFSVolumeSource,
    PersistentVolumeSpec,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import DaemonSet, Deployment
from lightkube.resources.core_v1 import ConfigMap, Node, PersistentVolume
from tests.conformance.programs import PROGRAMS
from tests.scenarios import steps

from fake_efs.aws_api import CREDENTIALS, AwsApi, Subnet, create_subnets
from fake_efs.process import ChildProcess, start_module
from fake_efs.service import LoopbackRange
from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.kube.client import connect, load_config
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import CONFIG_MAP_KEY, TunnelTargets, parse_targets
from kube_efs.operator.manifests import RenderOptions, text_of
from kube_efs.operator.operator_manifests import render_operator
from kube_efs.operator.platforms import Platform
from kube_efs.tunnels.mount_targets import NFS_PORT
from kube_efs_lab.aws import aws_options
from kube_efs_lab.manifests import apply
from kube_efs_lab.node import IMAGE
from kube_efs_lab.program import Program
from kube_efs_lab.programs import NAMES, NODE, reserved_base_port
from kube_efs_lab.real_control_plane import ControlPlanes, ServiceAccountName
from kube_efs_lab.real_plane import RealPlane

_AT_ONCE: Final = 16
# Those that AWS keeps in each subnet; one of them marks the range as taken.
_RESERVED_ADDRESSES: Final = 3
_REGION: Final = "us-east-1"
_INHERITED: Final = ("HOME", "LANG", "PATH", "PYTHONPATH", "TMPDIR")
_SETTLE_SECONDS: Final = 0.1
_DRIVER: Final = """\
apiVersion: operator.openshift.io/v1
kind: ClusterCSIDriver
metadata:
  name: efs.csi.aws.com
spec:
  managementState: Managed
"""
_PATIENCE_SECONDS: Final = 300.0
_QUIET_SECONDS: Final = 5.0
_SETTLED_SECONDS: Final = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The size of a cluster; ``used`` file systems have a tunnel on each node, ``processes`` run agents."""

    nodes: int
    file_systems: int
    volumes: int
    claims: int
    used: int
    processes: int
    idle_seconds: float

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """The sizes of the variables BENCH_NODES and so on."""

        def number(name: str, default: int) -> int:
            return int(environment.get(f"BENCH_{name}", default))

        return cls(
            nodes=number("NODES", 1_000),
            file_systems=number("FILE_SYSTEMS", 500),
            volumes=number("VOLUMES", 50_000),
            claims=number("CLAIMS", 10_000),
            used=number("USED", 2),
            processes=number("PROCESSES", 4),
            idle_seconds=number("IDLE_SECONDS", 330),
        )


class Account:
    """The file systems of the account, in moto."""

    def __init__(self, connection: AwsConnection, subnets: tuple[Subnet, ...]) -> None:
        self._connection = connection
        self.subnets = subnets
        self._hosts = tuple(islice(one.network.hosts(), _RESERVED_ADDRESSES, None) for one in subnets)
        self._numbers = count()

    async def file_systems(self, number: int) -> list[FileSystemId]:
        """New file systems with a mount target in each zone."""
        made: list[FileSystemId] = []

        async def make(one: int) -> None:
            answer = await self._call(
                "CreateFileSystem",
                CreationToken=f"scale-{one}",
                Tags=[{"Key": "Name", "Value": f"team-{one}-data"}],
            )
            file_system_id = FileSystemId(answer["FileSystemId"])
            for zone in range(len(self.subnets)):
                await self.mount_target(file_system_id, zone)
            made.append(file_system_id)

        await in_parallel(make(one) for one in range(number))
        return sorted(made)

    async def mount_target(self, file_system_id: str, zone: int) -> str:
        """A new mount target in the subnet of that number; its address."""
        address = str(next(self._hosts[zone]))
        await self._call(
            "CreateMountTarget",
            FileSystemId=file_system_id,
            SubnetId=self.subnets[zone].subnet_id,
            IpAddress=address,
        )
        return address

    async def replace_mount_target(self, file_system_id: str) -> tuple[str, str]:
        """Replace the mount target of the first zone; its address before and after."""
        answer = await self._call("DescribeMountTargets", FileSystemId=file_system_id)
        (old,) = (one for one in answer["MountTargets"] if one["SubnetId"] == self.subnets[0].subnet_id)
        await self._call("DeleteMountTarget", MountTargetId=old["MountTargetId"])
        return old["IpAddress"], await self.mount_target(file_system_id, 0)

    async def _call(self, operation: str, **parameters: object) -> Mapping[str, Any]:
        return await self._connection.call(Service.EFS, operation, **parameters)


async def in_parallel(calls: Iterable[Awaitable[object]]) -> None:
    """Await all, some at a time."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Awaitable[object]) -> None:
        async with slots:
            await call

    await asyncio.gather(*map(one, calls))


class Listeners:
    """Answers NFS calls at addresses and ports of loopback, as tunnels and mount targets do."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def open(self, address: str, port: int = NFS_PORT) -> None:
        """Listen there until the end."""
        server = await asyncio.start_server(_answer, address, port, backlog=1024)
        self._stack.callback(server.close)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept each call with an empty result, which is the answer to NULL, and an allowed one to others."""
    try:
        while True:
            mark = int.from_bytes(await reader.readexactly(4)) & 0x7FFF_FFFF
            xid = (await reader.readexactly(mark))[:4]
            reply = xid + struct.pack(">6I", 1, 0, 0, 0, 0, 0)
            writer.write(struct.pack(">I", 0x8000_0000 | len(reply)) + reply)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


class _Repeated(msgspec.Struct):
    """A line ``request-repeated`` of a log."""

    method: str
    path: str
    reason: str
    attempt: int


@dataclass(slots=True, kw_only=True)
class ScaleCluster:
    """The cluster; its controller runs, agents do not run yet."""

    folder: Path
    plane: RealPlane
    client: AsyncClient
    account: Account
    operator: Program
    controller: Program
    counters: ApiServerCounters
    listeners: Listeners
    handed_over: Path
    refused_twice: Path
    agents: list[ChildProcess]
    _aws: Mapping[str, str]
    _stack: AsyncExitStack

    @classmethod
    @asynccontextmanager
    async def of(cls, folder: Path) -> AsyncIterator[Self]:
        """A cluster of no nodes, volumes and file systems."""
        async with AsyncExitStack() as stack:
            planes = ControlPlanes(folder / "control-plane", PROGRAMS, many_objects=True)
            stack.push_async_callback(planes.stop)
            plane = await stack.enter_async_context(RealPlane(planes))
            client = await stack.enter_async_context(connect(load_config(plane.kubeconfig)))
            operator = await _install(plane, client, folder)
            stack.push_async_callback(operator.stop)
            loopback = LoopbackRange.acquire()
            stack.callback(loopback.release)
            api = await AwsApi.start(folder / "aws-api.log")
            stack.push_async_callback(api.stop)
            subnets = await create_subnets(api.endpoint_url, _REGION, loopback.network)
            connection = await stack.enter_async_context(AwsConnection(aws_options(api.endpoint_url)))
            aws = {
                "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
                "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key,
                "AWS_REGION": _REGION,
                "AWS_ENDPOINT_URL": api.endpoint_url,
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
            }
            cluster = cls(
                folder=folder,
                plane=plane,
                client=client,
                account=Account(connection, subnets),
                operator=operator,
                controller=await _controller(folder, plane, aws, stack.enter_context(reserved_base_port())),
                counters=ApiServerCounters(plane.kubeconfig),
                listeners=Listeners(stack),
                handed_over=folder / "handed-over",
                refused_twice=folder / "refused-twice",
                agents=[],
                _aws=aws,
                _stack=stack,
            )
            cluster.handed_over.touch()
            cluster.refused_twice.touch()
            cluster._kubeconfigs.mkdir()
            stack.push_async_callback(cluster.end_controller)
            yield cluster

    async def end_controller(self) -> None:
        """End the one that runs by now."""
        await self.controller.stop()

    async def start_controller(self) -> None:
        """Start it if it does not run, as a kubelet does, and wait until it is ready."""
        if not self.controller.running:
            await self.controller.start()
        await self.controller.ready(timeout_seconds=_PATIENCE_SECONDS)

    async def start_agents(self, nodes: Sequence[str], folder: Path) -> ChildProcess:
        """A process with the agents of these nodes, whose files are in ``folder``."""
        authorities = folder / "authorities.pem"
        await asyncio.to_thread(_make, authorities)
        environment = {
            **_inherited(),
            **self._aws,
            "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
            "KUBE_EFS_HEALTH_PORT": "0",
            "KUBE_EFS_CA_FILE": str(authorities),
            "KUBE_EFS_NAMES": NAMES.name_set.value,
            "POD_NAMESPACE": NAMES.namespace,
            "BENCH_NODES": ",".join(nodes),
            "BENCH_KUBECONFIGS": str(self._kubeconfigs),
            "BENCH_FOLDER": str(folder),
            "BENCH_HANDED_OVER": str(self.handed_over),
            "BENCH_REFUSED_TWICE": str(self.refused_twice),
            "BENCH_SUBNETS": ",".join(one.subnet_id for one in self.account.subnets),
            "BENCH_ZONES": ",".join(one.zone for one in self.account.subnets),
        }
        process = await start_module(
            "bench.scale.nodes", environment=environment, log_file=folder / "agents.log"
        )
        self._stack.push_async_callback(process.kill)
        self.agents.append(process)
        return process

    @property
    def _kubeconfigs(self) -> Path:
        return self.folder / "kubeconfigs"

    async def nodes(self, names: Iterable[str]) -> None:
        """New Node objects, and kubeconfigs with tokens as the pods of agents have there."""
        account = ServiceAccountName(NAMES.namespace, NAMES.tunnel_account)
        for name in names:
            labels = {"kubernetes.io/os": "linux"}
            await self.client.create(Node(metadata=ObjectMeta(name=name, labels=labels)))
            kubeconfig = await self.plane.plane.kubeconfig(account, node=name)
            await asyncio.to_thread(kubeconfig.rename, self._kubeconfigs / name)

    async def csi_volumes(self, number: int, file_systems: list[FileSystemId]) -> None:
        """Static volumes of the CSI driver, of all the file systems in turn."""
        await in_parallel(
            self.client.create(_csi_volume(one, file_systems[one % len(file_systems)]))
            for one in range(number)
        )

    async def settle(self) -> None:
        """Wait until Kubernetes' own controllers have no more to write about the volumes."""
        before = await self.counters.read()
        async with asyncio.timeout(_SETTLED_SECONDS):
            while True:
                await asyncio.sleep(_QUIET_SECONDS)
                now = await self.counters.read()
                writes = now.since(before).requests
                if not any(verb == "PUT" and kind == "persistentvolumes" for verb, kind, _ in writes):
                    return
                before = now

    async def use(self, file_system_id: FileSystemId) -> None:
        """Make a tunnel volume, so that each node opens the port; listen at all addresses of it."""
        target = (await self.targets()).targets[file_system_id]
        await self.listeners.open("127.0.0.1", target.port)
        for address in target.address_by_subnet.values():
            await self.listeners.open(address)
        await self.client.create(_tunnel_volume(file_system_id, target.port))

    async def targets(self) -> TunnelTargets:
        """What the controller has published."""
        return parse_targets((await self.config_map())[CONFIG_MAP_KEY])[0]

    async def config_map(self) -> Mapping[str, str]:
        """The ConfigMap with the targets; waits until it exists."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                async for one in self.client.list(ConfigMap, namespace=NAMES.namespace):
                    if one.metadata and one.metadata.name == NAMES.config_map and one.data:
                        return one.data
                await asyncio.sleep(_SETTLE_SECONDS)

    async def statuses(self) -> list[int]:
        """The sizes of the statuses that agents have published."""
        found = self.client.list(
            ConfigMap, namespace=NAMES.namespace, labels={**NAMES.tunnel_status_labels}, chunk_size=500
        )
        return [sum(map(len, (one.data or {}).values())) async for one in found]

    def requests_refused_twice(self) -> int:
        """How many requests of agents, controller and operator were answered 429 twice so far."""
        of_agents = self.refused_twice.read_text(encoding="ascii").splitlines()
        # Those of the operator and of each controller, also of one that has ended.
        return len(of_agents) + sum(map(_refused_twice, self.folder.glob("*.log")))

    def agents_at(self, address: str) -> dict[str, float]:
        """The nodes that have handed over a service of that address, and when each did first."""
        first: dict[str, float] = {}
        for line in self.handed_over.read_text(encoding="ascii").splitlines():
            time, node, *addresses = line.split(" ")
            if address in addresses:
                first.setdefault(node, float(time))
        return first


def _refused_twice(log_file: Path) -> int:
    """How many lines in the log of a process follow a line about the attempt before, both answered 429."""
    lines = (line for line in log_file.read_bytes().splitlines() if b"request-repeated" in line)
    repeated = (msgspec.json.decode(line, type=_Repeated) for line in lines)
    refused = [one for one in repeated if one.reason == "answered 429"]
    attempts = {(one.method, one.path, one.attempt) for one in refused}
    return sum((one.method, one.path, one.attempt - 1) in attempts for one in refused)


def _make(file: Path) -> None:
    file.parent.mkdir()
    file.touch()


async def _install(plane: RealPlane, client: AsyncClient, folder: Path) -> Program:
    """The operator, after it has installed everything with its own account; no kubelet runs the pods."""
    options = RenderOptions(
        platform=Platform.KUBERNETES, namespace=NAMES.namespace, create_namespace=True, csi=True
    )
    kept = [one for one in render_operator(options) if one["kind"] != "Deployment"]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    await apply(client, [text_of(kept, as_json=False), yaml.safe_dump(node)])
    settings = {
        **_inherited(),
        "KUBECONFIG": str(await plane.kubeconfig_of("kube-efs-operator")),
        "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
        "KUBE_EFS_HEALTH_PORT": "0",
        "KUBE_EFS_IMAGE": "registry.example.com/kube-efs:1",
        "KUBE_EFS_NAMES": NAMES.name_set.value,
        "POD_NAME": "kube-efs-operator-0",
        "POD_NAMESPACE": NAMES.namespace,
    }
    operator = Program("operator", settings, folder / "operator.log")
    await operator.start()
    await operator.ready()
    await apply(client, [_DRIVER])
    await steps.eventually(lambda: _is_installed(client), what="the operator has installed everything")
    return operator


async def _is_installed(client: AsyncClient) -> bool:
    deployments = [one.metadata async for one in client.list(Deployment, namespace=NAMES.namespace)]
    sets = [one.metadata async for one in client.list(DaemonSet, namespace=NAMES.namespace)]
    names = {one.name for one in (*deployments, *sets) if one}
    return names == {NAMES.controller, NAMES.tunnel, NAMES.node}


async def _controller(folder: Path, plane: RealPlane, aws: Mapping[str, str], base_port: int) -> Program:
    settings = {
        **_inherited(),
        **aws,
        "KUBECONFIG": str(await plane.kubeconfig_of(NAMES.controller_account)),
        "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
        "KUBE_EFS_HEALTH_PORT": "0",
        "BASE_STUNNEL_PORT": str(base_port),
        "KUBE_EFS_BACKENDS": "tunnel,csi",
        "KUBE_EFS_WORKER_MOUNTS": "csi",
        "KUBE_EFS_ACCESS_POINT_QUOTA": "100000",
        "KUBE_EFS_NAMES": NAMES.name_set.value,
        "LOGGING_LEVEL": "INFO",
        "NODE_NAME": "embedded",
        "POD_NAME": f"{NAMES.controller}-0",
        "POD_NAMESPACE": NAMES.namespace,
        "WORKER_IMAGE": IMAGE,
    }
    return Program("controller", settings, folder / "controller.log")


def _inherited() -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | {"PYTHONPATH": path}


def _csi_volume(number: int, file_system_id: FileSystemId) -> PersistentVolume:
    handle = f"{file_system_id}::fsap-{number:017x}"
    return PersistentVolume(
        metadata=ObjectMeta(name=f"static-{number:06}"),
        spec=PersistentVolumeSpec(
            accessModes=["ReadWriteMany"],
            capacity={"storage": "1Gi"},
            csi=CSIPersistentVolumeSource(driver="efs.csi.aws.com", volumeHandle=handle),
            persistentVolumeReclaimPolicy="Retain",
            storageClassName="static",
        ),
    )


def _tunnel_volume(file_system_id: FileSystemId, port: int) -> PersistentVolume:
    return PersistentVolume(
        metadata=ObjectMeta(
            name=f"tunnel-{file_system_id}",
            annotations={"efs-stunnel.gnuthought.com/file-system-id": file_system_id},
        ),
        spec=PersistentVolumeSpec(
            accessModes=["ReadWriteMany"],
            capacity={"storage": "1Gi"},
            mountOptions=[f"port={port}"],
            nfs=NFSVolumeSource(server="127.0.0.1", path="/"),
            persistentVolumeReclaimPolicy="Retain",
            storageClassName="static",
        ),
    )
