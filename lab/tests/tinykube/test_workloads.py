"""Deployments and StatefulSets as people run them: with kubectl, on all parts of the embedded cluster."""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from fake_efs.file_systems import server_names
from fake_efs.service import EmbeddedEfs
from kube_efs.kube.client import connect, load_config
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs_lab.control_plane import EmbeddedControlPlane
from kube_efs_lab.node import make_kubelet

KUBECTL = shutil.which("kubectl")
DEADLINE_SECONDS = 60.0
# Word for word from efs-provisioner's README, but for the blank lines.
README_STATEFUL_SET = """
apiVersion: v1
kind: Service
metadata:
  name: nginx
  labels:
    app: nginx
spec:
  ports:
  - port: 80
    name: web
  clusterIP: None
  selector:
    app: nginx
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: web
spec:
  selector:
    matchLabels:
      app: nginx
  serviceName: "nginx"
  replicas: 3
  template:
    metadata:
      labels:
        app: nginx
    spec:
      terminationGracePeriodSeconds: 10
      containers:
      - name: nginx
        image: gcr.io/google_containers/nginx-slim:0.8
        ports:
        - containerPort: 80
          name: web
        volumeMounts:
        - name: efs
          mountPath: /usr/share/nginx/html
  volumeClaimTemplates:
  - metadata:
      name: efs
      annotations:
        volume.beta.kubernetes.io/storage-class: aws-efs
    spec:
      accessModes: [ "ReadWriteOnce" ]
      resources:
        requests:
          storage: 1Mi
"""

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"),
]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What became of a kubectl."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class World:
    """A cluster with one file system; calling it runs kubectl."""

    environment: dict[str, str]
    efs: EmbeddedEfs
    file_system_id: FileSystemId

    @property
    def name(self) -> str:
        """The file system's DNS name."""
        return server_names(self.file_system_id, self.efs.region)[0]

    @property
    def data(self) -> Path:
        """Where its files are."""
        return self.efs.folder(self.file_system_id)

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(KUBECTL),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
        )

    async def end(self, *arguments: str, given: object = "") -> Ended:
        text = given if isinstance(given, str) else yaml.safe_dump(given)
        process = await self.start(*arguments)
        async with asyncio.timeout(DEADLINE_SECONDS):
            out, err = await process.communicate(text.encode())
        return Ended(code=process.returncode or 0, out=out.decode(), err=err.decode())

    async def __call__(self, *arguments: str, given: object = "") -> str:
        ended = await self.end(*arguments, given=given)
        assert ended.code == 0, ended.err
        return ended.out

    async def get(self, *arguments: str) -> Any:
        return json.loads(await self("get", *arguments, "-o", "json"))

    async def names(self, *arguments: str) -> list[str]:
        return [item["metadata"]["name"] for item in (await self.get(*arguments))["items"]]

    async def run(self, name: str, script: str, **spec: Any) -> str:
        """Run a shell script as a pod, with its first volume at /data, and give its log."""
        mounts = [{"name": volume["name"], "mountPath": "/data"} for volume in spec.get("volumes", ())]
        main = {"name": "main", "image": "any", "command": ["sh", "-c", script], "volumeMounts": mounts}
        body = {"restartPolicy": "Never", "containers": [main], **spec}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}
        await self("apply", "-f", "-", given=pod)
        await self("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=50s")
        return await self("logs", name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def efs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedEfs]:
    async with EmbeddedEfs(tmp_path_factory.mktemp("efs")) as efs:
        yield efs


@pytest_asyncio.fixture(loop_scope="module")
async def world(efs: EmbeddedEfs, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        file_system_id = FileSystemId(await efs.create_file_system("first"))
        stack.push_async_callback(efs.delete_file_system, file_system_id)
        kubeconfig = tmp_path / "kubeconfig"
        plane = await stack.enter_async_context(EmbeddedControlPlane(kubeconfig))
        client = await stack.enter_async_context(connect(load_config(kubeconfig)))
        kubelet = make_kubelet(
            client,
            efs,
            name="node-1",
            names=replace(OPENSHIFT_EFS_STUNNEL, namespace="default"),
            root=tmp_path / "kubelet",
        )
        plane.take_logs_from(kubelet)
        for part in (plane.run_controllers(client, node="node-1"), kubelet.run()):
            stack.push_async_callback(_end, asyncio.create_task(part))
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)}
        yield World(environment, efs, file_system_id)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until(check: Callable[[], Awaitable[Any]]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not await check():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.05)


def deployment(name: str = "app", **spec: Any) -> Any:
    labels = {"app": name}
    main = {"name": "main", "image": "any", "command": ["sleep", "infinity"]}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [main], "terminationGracePeriodSeconds": 1},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template, **spec},
    }


def volume(world: World, number: int) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"volume-{number}"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Mi"},
            "storageClassName": "aws-efs",
            "nfs": {"server": world.name, "path": f"/volumes/{number}"},
        },
    }


async def test_deployment_is_rolled_out_scaled_updated_and_removed(world: World) -> None:
    await world("apply", "-f", "-", given=deployment())
    await world("rollout", "status", "deployment/app", "--timeout=50s")
    await world("scale", "deployment/app", "--replicas=3")
    await world("rollout", "status", "deployment/app", "--timeout=50s")
    before = await world.names("pods")
    assert len(before) == 3
    await world("set", "env", "deployment/app", "CHANGED=yes")
    assert "successfully rolled out" in await world("rollout", "status", "deployment/app", "--timeout=50s")
    pods = (await world.get("pods", "--field-selector=status.phase=Running"))["items"]
    new = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    assert len(new) == 3
    assert not {pod["metadata"]["name"] for pod in new} & set(before)
    assert all(pod["spec"]["containers"][0]["env"] == [{"name": "CHANGED", "value": "yes"}] for pod in new)
    counts = "jsonpath={.status.readyReplicas} {.status.updatedReplicas} {.status.availableReplicas}"
    assert await world("get", "deployment", "app", "-o", counts) == "3 3 3"

    await world("delete", "deployment", "app")

    async def all_is_gone() -> bool:
        return not await world.names("pods")

    await until(all_is_gone)


async def test_pods_of_a_daemon_set_outlive_it_and_belong_to_the_next_one(world: World) -> None:
    given = yaml.safe_dump(_of_kind("DaemonSet"))
    await world("apply", "-f", "-", given=given)
    await world("rollout", "status", "daemonset/daemonset", "--timeout=50s")
    before = await _owners(world)

    await world("delete", "daemonset/daemonset", "--cascade=orphan")
    assert await _owners(world) == dict.fromkeys(before)

    await world("apply", "-f", "-", given=given)
    await world("rollout", "status", "daemonset/daemonset", "--timeout=50s")
    after = await _owners(world)
    assert after.keys() == before.keys()
    assert None not in after.values()
    assert after != before


def _of_kind(kind: str) -> Any:
    found = deployment(kind.lower(), replicas=1)
    if kind == "DaemonSet":
        del found["spec"]["replicas"]
    return {**found, "kind": kind}


async def _owners(world: World) -> dict[str, str | None]:
    """The uid of each pod's owner, by that of the pod."""
    return {
        pod["metadata"]["uid"]: next((one["uid"] for one in pod["metadata"].get("ownerReferences", ())), None)
        for pod in (await world.get("pods"))["items"]
    }


async def test_node_is_drained_and_taken_into_use_again(world: World) -> None:
    scratch = deployment("scratch", replicas=1)
    scratch["spec"]["template"]["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    await world("apply", "-f", "-", given=yaml.safe_dump_all([scratch, _of_kind("DaemonSet")]))
    for name in ("deployment/scratch", "daemonset/daemonset"):
        await world("rollout", "status", name, "--timeout=50s")
    before = {pod["metadata"]["labels"]["app"]: pod for pod in (await world.get("pods"))["items"]}

    drain = ("drain", "node-1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=50s")
    assert f"pod/{before['scratch']['metadata']['name']} evicted" in await world(*drain)
    assert await world("get", "node", "node-1", "-o", "jsonpath={.spec.unschedulable}") == "true"
    waiting = await _only_pod(world, "scratch", other_than=before["scratch"]["metadata"]["name"])
    await until(lambda: _refused(world, waiting))
    await world("rollout", "restart", "daemonset/daemonset")
    await world("rollout", "status", "daemonset/daemonset", "--timeout=50s")

    await world("uncordon", "node-1")
    await world("wait", "pods", "-l", "app=scratch", "--for=condition=Ready", "--timeout=50s")


async def _only_pod(world: World, app: str, *, other_than: str) -> str:
    """Wait until another pod is the only one of the application; returns its name."""
    names: list[str] = []

    async def look() -> bool:
        names[:] = await world.names("pods", "-l", f"app={app}")
        return len(names) == 1 and names != [other_than]

    await until(look)
    return names[0]


async def _refused(world: World, name: str) -> bool:
    conditions = (await world.get("pod", name)).get("status", {}).get("conditions", ())
    return any("1 node(s) were unschedulable" in one.get("message", "") for one in conditions)


async def test_commands_run_beside_a_container(world: World) -> None:
    mounted = [{"name": "data", "mountPath": "/data"}]
    main = {
        "name": "main",
        "image": "any",
        "command": ["sh", "-c", "echo written > /data/file; sleep infinity"],
        "env": [{"name": "COLOR", "value": "blue"}],
        "volumeMounts": mounted,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        "spec": {
            "containers": [main],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "securityContext": {"runAsUser": 1234},
            "terminationGracePeriodSeconds": 1,
        },
    }
    await world("apply", "-f", "-", given=pod)
    await world("wait", "pod/one", "--for=condition=Ready", "--timeout=50s")
    script = "test $$ -gt 1; cat /data/file; echo $COLOR; id -u; pwd; hostname >/dev/null"
    shown = await world("exec", "one", "--", "sh", "-c", script)
    assert shown.split() == ["written", "blue", "1234", "/"]
    much = "yes much | head -n 40000"
    assert await world("exec", "one", "--", "sh", "-c", much) == "much\n" * 40_000

    for command, code, told in (
        (["sh", "-c", "echo oh >&2; exit 7"], 7, "oh\ncommand terminated with exit code 7"),
        (["none"], 127, 'exec: "none": executable file not found in $PATH'),
        (["/etc/passwd"], 126, 'exec: "/etc/passwd": Permission denied'),
        (["sh", "-c", "kill -KILL $$"], 137, "exit code 137"),
    ):
        ended = await world.end("exec", "one", "--", *command)
        assert (ended.code, told in ended.err) == (code, True), ended
    assert (
        "container other is not valid for pod one"
        in (await world.end("exec", "one", "-c", "other", "--", "ls")).err
    )


async def test_a_command_goes_with_whoever_asked(world: World) -> None:
    main = {"name": "main", "image": "any", "command": ["sleep", "infinity"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": {"containers": [main]}}
    await world("apply", "-f", "-", given=pod)
    await world("wait", "pod/one", "--for=condition=Ready", "--timeout=50s")
    left = await world.start("exec", "one", "--", "sleep", "8888")
    await until(lambda: _runs(world, "sleep 8888"))
    left.terminate()
    await left.communicate()
    await until(lambda: _negated(_runs(world, "sleep 8888")))


async def _runs(world: World, command: str) -> bool:
    return command in await world("exec", "one", "--", "ps", "-eo", "args")


async def _negated(found: Awaitable[bool]) -> bool:
    return not await found


async def test_recreate_has_no_old_pod_beside_a_new_one(world: World) -> None:
    marks = {"name": "marks", "hostPath": {"path": str(world.data)}}
    # Each holds a directory while it runs; two at once would fail.
    script = (
        "trap 'sleep 0.5; rmdir /data/held; exit' TERM; mkdir /data/held || exit 1; sleep infinity & wait"
    )
    main = {
        "name": "main",
        "image": "any",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "marks", "mountPath": "/data"}],
    }
    given = deployment(replicas=1, strategy={"type": "Recreate"})
    given["spec"]["template"]["spec"] = {"containers": [main], "volumes": [marks]}
    await world("apply", "-f", "-", given=given)
    await world("rollout", "status", "deployment/app", "--timeout=50s")
    await until(lambda: asyncio.to_thread((world.data / "held").is_dir))
    (before,) = await world.names("pods")
    await world("rollout", "restart", "deployment/app")
    await world("rollout", "status", "deployment/app", "--timeout=50s")
    (pod,) = (await world.get("pods"))["items"]
    assert pod["metadata"]["name"] != before
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_deleted_pod_is_made_again(world: World) -> None:
    await world("apply", "-f", "-", given=deployment(replicas=1))
    await world("rollout", "status", "deployment/app", "--timeout=50s")
    (before,) = await world.names("pods")
    await world("delete", "pod", before)
    # The status of the deployment may still be that with the first pod.
    after = await _only_pod(world, "app", other_than=before)
    await world("wait", f"pod/{after}", "--for=condition=Ready", "--timeout=50s")


async def test_stateful_set_of_the_readme(world: World) -> None:
    for number in range(4):
        (world.data / "volumes" / str(number)).mkdir(parents=True)
        await world("apply", "-f", "-", given=volume(world, number))
    await world("apply", "-f", "-", given=README_STATEFUL_SET)
    await world("rollout", "status", "statefulset/web", "--timeout=60s")
    claims = (await world.get("pvc"))["items"]
    assert [claim["metadata"]["name"] for claim in claims] == ["efs-web-0", "efs-web-1", "efs-web-2"]
    assert len({claim["spec"]["volumeName"] for claim in claims}) == 3
    pods = (await world.get("pods"))["items"]
    assert [pod["metadata"]["name"] for pod in pods] == ["web-0", "web-1", "web-2"]
    started = [pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] for pod in pods]
    assert started == sorted(started)
    assert "is not pulled here; nothing runs in its place" in await world("logs", "web-0")
    assert "unchanged" in await world("apply", "-f", "-", given=README_STATEFUL_SET)

    await world("scale", "statefulset/web", "--replicas=1")
    await until(lambda: _equals(world.names("pods"), ["web-0"]))
    assert len(await world.names("pvc")) == 3
    await world("scale", "statefulset/web", "--replicas=4")
    await world("rollout", "status", "statefulset/web", "--timeout=60s")
    again = {claim["metadata"]["name"]: claim for claim in (await world.get("pvc"))["items"]}
    assert len(again) == 4
    for claim in claims:
        assert again[claim["metadata"]["name"]]["metadata"]["uid"] == claim["metadata"]["uid"]
    await world("delete", "statefulset", "web")
    await until(lambda: _equals(world.names("pods"), []))
    assert len(await world.names("pvc")) == 4


async def _equals(found: Awaitable[list[str]], wanted: list[str]) -> bool:
    return await found == wanted


async def test_programs_in_pods_reach_the_api_as_their_account(world: World) -> None:
    await world("create", "serviceaccount", "robot")
    said = await world.run(
        "asks", "kubectl auth whoami && kubectl get pods -o name", serviceAccountName="robot"
    )
    assert "system:serviceaccount:default:robot" in said
    assert "pod/asks" in said
    script = f"{sys.executable} -c '{_LIGHTKUBE}'"
    assert (await world.run("client", script)).split() == ["default", "system:serviceaccount:default:default"]
    without = "ls /var/run/secrets/kubernetes.io/serviceaccount/token 2>&1; true"
    said = await world.run("mute", without, automountServiceAccountToken=False)
    assert "No such file or directory" in said


_LIGHTKUBE = (
    "from lightkube import Client; from lightkube.models.authentication_v1 import *;"
    " from lightkube.resources.authentication_v1 import SelfSubjectReview;"
    " client = Client(); print(client.namespace);"
    " print(client.create(SelfSubjectReview()).status.userInfo.username)"
)


async def test_file_systems_are_mounted_by_name_and_address(world: World) -> None:
    (world.data / "team").mkdir()
    (world.data / "team" / "file").write_text("content")
    (target, *_) = await world.efs.mount_targets(world.file_system_id)
    for name, server in (("by-name", world.name), ("by-address", str(target.address))):
        source = {"name": "efs", "nfs": {"server": server, "path": "/team"}}
        assert await world.run(name, "cat /data/file", volumes=[source]) == "content"


async def test_another_name_fails_as_a_mount_would(world: World) -> None:
    source = {"name": "efs", "nfs": {"server": "files.example.com", "path": "/"}}
    main = {"name": "main", "image": "any", "command": ["true"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "lost"},
        "spec": {"containers": [main], "volumes": [source]},
    }
    await world("apply", "-f", "-", given=pod)

    async def is_told() -> bool:
        told = await world.get("events", "--field-selector=reason=FailedMount")
        wanted = "Failed to resolve server files.example.com: Name or service not known"
        return any(wanted in event["message"] for event in told["items"])

    await until(is_told)
    assert (await world.get("pod", "lost"))["status"]["phase"] == "Pending"


async def test_group_of_a_volume_lets_its_pods_write_and_nobody_else(world: World) -> None:
    directory = world.data / "volumes" / "0"
    directory.mkdir(parents=True)
    os.chown(directory, 0, 4321)
    directory.chmod(0o2771)
    body = volume(world, 0)
    body["metadata"]["annotations"] = {"pv.beta.kubernetes.io/gid": "4321"}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "aws-efs",
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }
    await world("apply", "-f", "-", given=body)
    await world("apply", "-f", "-", given=claim)
    user = {"runAsUser": 1234, "runAsGroup": 1234}
    claimed = [{"name": "efs", "persistentVolumeClaim": {"claimName": "data"}}]
    said = await world.run("member", "id -G; echo x > /data/file", volumes=claimed, securityContext=user)
    assert "4321" in said.split()
    assert (directory / "file").stat().st_gid == 4321
    beside = [{"name": "efs", "nfs": {"server": world.name, "path": "/volumes/0"}}]
    script = "id -G; echo x 2>&1 > /data/other || echo refused"
    said = await world.run("stranger", script, volumes=beside, securityContext=user)
    assert said.split()[0] == "1234"
    assert "refused" in said
    assert not (directory / "other").exists()
