"""A cluster with one node: control plane, embedded AWS and EFS on this machine, the node in a guest."""

import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.conformance.kubectl import Kubectl
from tests.conformance.programs import PROGRAMS
from tests.kubelet import images, network, workload
from tests.kubelet.node import Node
from tests.scenarios.steps import eventually

from fake_efs.aws_api import AwsClient, aws_client
from fake_efs.policy import managed_policy
from fake_efs.service import EmbeddedEfs
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs_lab.programs import QUICK_SETTINGS
from kube_efs_lab.real_control_plane import RealControlPlane, RealNodes

NAMES = NEW_INSTALLATION.names
NODE = "node-1"
# Of a command of kubectl. A pod is ready within 20 s, but machines can be much slower, or busy.
PATIENCE_SECONDS = 600
PATIENCE = f"--timeout={PATIENCE_SECONDS}s"
# Of files that belong to this process, and would hide what the node has.
_NOT_OF_PODS = frozenset({"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"})
_SCRIPT = Path(workload.__file__).read_text()
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``image`` is the name of our image in the manifests, ``newer_image`` that of another version."""

    efs: EmbeddedEfs
    node: Node
    kubectl: Kubectl
    file_system: str
    image: str
    newer_image: str

    @property
    def data(self) -> Path:
        """The root directory of the file system on this machine."""
        return self.efs.folder(self.file_system)

    async def get(self, *what: str) -> Any:
        """An object or a list of them, as ``kubectl get`` prints them in JSON."""
        return json.loads(await self.kubectl("get", *what, "--output", "json"))

    async def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or change objects."""
        await self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    async def new_namespace(self) -> str:
        """A namespace that no other test uses, with its service account."""
        name = f"users-{next(_numbers)}"
        await self.kubectl("create", "namespace", name)
        await self.kubectl("wait", "serviceaccount/default", "-n", name, "--for=create", PATIENCE)
        return name

    async def is_nothing_mounted(self) -> bool:
        """Whether the node has no NFS mount."""
        return " nfs4 " not in await self.node.run("cat", "/proc/mounts")

    async def create_access_point(self, path: str, *, uid: int) -> str:
        """Create an access point with that root directory and user; returns its ID."""
        async with self._efs_api() as api:
            made = await api.call(
                "CreateAccessPoint",
                ClientToken=path,
                FileSystemId=self.file_system,
                PosixUser={"Uid": uid, "Gid": uid},
                RootDirectory={
                    "Path": path,
                    "CreationInfo": {"OwnerUid": uid, "OwnerGid": uid, "Permissions": "0750"},
                },
            )
        return str(made["AccessPointId"])

    async def volumes(self) -> set[str]:
        """The names of all volumes but those of worker pods: the last that failed stay, for their logs."""
        found = await self.get("pv", "-l", "component!=efs-worker")
        return {one["metadata"]["name"] for one in found["items"]}

    async def access_points(self) -> set[str]:
        """The IDs of all access points in AWS."""
        async with self._efs_api() as api:
            found = await api.call("DescribeAccessPoints", FileSystemId=self.file_system)
        return {str(one["AccessPointId"]) for one in found["AccessPoints"]}

    def _efs_api(self) -> AbstractAsyncContextManager[AwsClient]:
        return aws_client("efs", self.efs.endpoint_url, self.efs.region)


class Workload:
    """A pod that writes to a volume and reads back, past the page cache, until it is deleted.

    An error that its program sees ends its container. The blocks are counted where they arrive, in
    the file of that name on this machine. ``restarts`` is how often the node was rebooted meanwhile.
    """

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.name = name
        self.namespace = namespace
        self.restarts = 0
        self._cluster = cluster

    @property
    def file(self) -> Path | None:
        """What it writes, on this machine; None while that does not exist."""
        return next(self._cluster.data.rglob(f"{self.namespace}.{self.name}"), None)

    @property
    def blocks(self) -> int:
        """The number of blocks that have arrived."""
        return self.file.stat().st_size // workload.BLOCK if self.file else 0

    async def continues(self, blocks: int = 3, *, seconds: float = 600.0) -> None:
        """Wait until that many more blocks have arrived."""
        await self.reach(self.blocks + blocks, seconds=seconds)

    async def reach(self, wanted: int, *, seconds: float = 600.0) -> None:
        """Wait until that many blocks have arrived."""

        async def look() -> bool:
            if self.blocks >= wanted:
                return True
            where = ("pod", self.name, "-n", self.namespace, "--ignore-not-found")
            restarts = "jsonpath={.status.containerStatuses[0].restartCount}"
            found = await self._cluster.kubectl("get", *where, "-o", restarts)
            assert int(found or 0) <= self.restarts, await self._describe()
            return False

        await eventually(look, what=f"{self.name} writes", seconds=seconds, explain=self._describe)

    async def has_seen_no_error(self) -> None:
        """Fail if the program has ended or was started again, or if a block is not what was written."""
        pod = await self._cluster.get("pod", self.name, "-n", self.namespace)
        (container,) = pod["status"]["containerStatuses"]
        is_same_life = container["restartCount"] == self.restarts and "running" in container["state"]
        assert is_same_life, await self._describe()
        self.holds_what_was_written()

    def holds_what_was_written(self) -> None:
        """Fail if a block of the file is not what was written, or if there is none."""
        assert self.file, f"{self.name} has written nothing"
        with self.file.open("rb") as file:
            blocks = self.blocks
            assert blocks
            for number in range(blocks):
                assert file.read(workload.BLOCK) == workload.content(number), number

    async def delete(self) -> None:
        """Delete the pod, and wait until it is gone."""
        await self._cluster.kubectl("delete", "pod", self.name, "-n", self.namespace, PATIENCE)

    async def _describe(self) -> str:
        namespace = ("-n", self.namespace)
        asked = (
            ("get", "pod", self.name, *namespace, "-o", "jsonpath={.status.containerStatuses}"),
            ("events", "--for", f"pod/{self.name}", *namespace),
            ("logs", self.name, *namespace, "--tail=5"),
        )
        answers = [await self._cluster.kubectl.run(*one) for one in asked]
        return "\n".join(one.output + one.errors for one in answers)


def pod(
    name: str,
    namespace: str,
    claim: str,
    *,
    image: str,
    security: Mapping[str, object] | None = None,
    mount: Mapping[str, object] | None = None,
    source: Mapping[str, object] | None = None,
    command: Sequence[str] | None = None,
) -> dict[str, Any]:
    """A pod with a claim at ``/data``, which runs the program of a ``Workload``, or else the command."""
    own = ("/opt/kube-efs/bin/python", "-I", "-S", "-c", _SCRIPT, f"/data/{namespace}.{name}")
    container = {
        "name": "main",
        "image": image,
        "command": list(command or own),
        "volumeMounts": [{"name": "data", "mountPath": "/data", **(mount or {})}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never" if command else "Always",
            "terminationGracePeriodSeconds": 5,
            "securityContext": dict(security or {}),
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim, **(source or {})}}],
        },
    }


def claim(name: str, namespace: str, storage_class: str, **spec: object) -> dict[str, Any]:
    """A claim for several writers."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
        },
    }


@asynccontextmanager
async def running_cluster(folder: Path, *, image: str) -> AsyncIterator[Cluster]:
    """The cluster while the context is open, without kube-efs, and with both versions of the ``image``."""
    network.set_up()
    repository = "quay.io/kube-efs/kube-efs"
    names = (f"{repository}:{image.rpartition(':')[2]}", f"{repository}:newer")
    async with AsyncExitStack() as stack:
        efs = await stack.enter_async_context(
            EmbeddedEfs(folder / "efs", network=network.AWS, driver_policy=managed_policy())
        )
        nodes = RealNodes(services=network.SERVICES, names=(NODE,))
        plane = await stack.enter_async_context(RealControlPlane(folder / "plane", PROGRAMS, nodes=nodes))
        environment = {name: text for name, text in efs.environment().items() if name not in _NOT_OF_PODS}
        images.write_busybox(folder / "busybox.tar")
        images.write_own(
            folder / "own.tar",
            image,
            names=names,
            environment={
                **environment,
                **QUICK_SETTINGS,
                "AWS_ENDPOINT_URL_STS": efs.pod_roles.url,
                "KUBE_EFS_POD_IDENTITY_ENDPOINT": efs.pod_roles.url,
            },
            ca_file=efs.ca_file,
        )
        node = await stack.enter_async_context(
            Node(
                NODE,
                folder / "node",
                kubeconfig=plane.node_kubeconfig(NODE),
                api_server_ca=plane.ca_file,
                archives=[folder / name for name in ("busybox.tar", "own.tar-0", "own.tar-1")],
                provider_id=f"aws:///{efs.subnets[0].zone}/{efs.instance_id}",
            )
        )
        kubectl = Kubectl(plane.admin_kubeconfig, seconds=PATIENCE_SECONDS + 10)
        for condition in ("create", "condition=Ready"):
            await kubectl("wait", f"node/{NODE}", f"--for={condition}", PATIENCE)
        yield Cluster(
            efs=efs,
            node=node,
            kubectl=kubectl,
            file_system=await efs.create_file_system("data"),
            image=names[0],
            newer_image=names[1],
        )
