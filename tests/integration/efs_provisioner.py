"""Installs ``deploy/efs-provisioner`` in a cluster as its users do, on any control plane."""

import asyncio
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from tests.conformance.kubectl import Kubectl

from fake_efs.file_systems import server_names
from fake_efs.service import EmbeddedEfs
from kube_efs.kube.client import connect, load_config
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs_lab.control_plane import ControlPlane
from kube_efs_lab.node import make_kubelet

DEPLOY = Path(__file__).parents[2] / "deploy" / "efs-provisioner"
TROUBLESHOOTING = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
NODE = "node-1"

_DEADLINE_SECONDS = 60.0

# The examples of efs-provisioner's README, word for word except blank lines.
TEST_POD = """\
kind: Pod
apiVersion: v1
metadata:
  name: test-pod
spec:
  containers:
  - name: test-pod
    image: gcr.io/google_containers/busybox:1.24
    command:
      - "/bin/sh"
    args:
      - "-c"
      - "touch /mnt/SUCCESS && exit 0 || exit 1"
    volumeMounts:
      - name: efs-pvc
        mountPath: "/mnt"
  restartPolicy: "Never"
  volumes:
    - name: efs-pvc
      persistentVolumeClaim:
        claimName: efs
"""
STATEFUL_SET = """\
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
apiVersion: apps/v1beta1
kind: StatefulSet
metadata:
  name: web
spec:
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


# The content of efs-provisioner's manifests: its environment, no arguments, and exactly its permissions. The
# selector is new, because apps/v1 requires it.
OLDER_INSTALLATION = """\
apiVersion: v1
kind: ServiceAccount
metadata: {name: efs-provisioner}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: efs-provisioner}
data:
  file.system.id: fs-47a2c22e
  aws.region: us-west-2
  provisioner.name: example.com/aws-efs
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: efs-provisioner-runner}
rules:
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, create, delete]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, update]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [events], verbs: [create, update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: run-efs-provisioner}
subjects: [{kind: ServiceAccount, name: efs-provisioner, namespace: default}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: efs-provisioner-runner}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: leader-locking-efs-provisioner}
rules:
- {apiGroups: [""], resources: [endpoints], verbs: [get, list, watch, create, update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: leader-locking-efs-provisioner}
subjects: [{kind: ServiceAccount, name: efs-provisioner, namespace: default}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: leader-locking-efs-provisioner}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: efs-provisioner}
spec:
  replicas: 1
  strategy: {type: Recreate}
  selector: {matchLabels: {app: efs-provisioner}}
  template:
    metadata: {labels: {app: efs-provisioner}}
    spec:
      serviceAccountName: efs-provisioner
      containers:
      - name: efs-provisioner
        image: quay.io/external_storage/efs-provisioner:latest
        env:
        - name: FILE_SYSTEM_ID
          valueFrom: {configMapKeyRef: {name: efs-provisioner, key: file.system.id}}
        - name: AWS_REGION
          valueFrom: {configMapKeyRef: {name: efs-provisioner, key: aws.region}}
        - name: DNS_NAME
          valueFrom: {configMapKeyRef: {name: efs-provisioner, key: dns.name, optional: true}}
        - name: PROVISIONER_NAME
          valueFrom: {configMapKeyRef: {name: efs-provisioner, key: provisioner.name}}
        # Only for the embedded node, which binds a directory: a mount of NFS has its server as source.
        - {name: KUBE_EFS_DIRECTORY_MOUNT, value: /persistentvolumes}
        - {name: KUBE_EFS_DIRECTORY_PATH, value: /}
        volumeMounts: [{name: pv-volume, mountPath: /persistentvolumes}]
      volumes:
      - name: pv-volume
        nfs: {server: fs-47a2c22e.efs.us-west-2.amazonaws.com, path: /}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: aws-efs}
provisioner: example.com/aws-efs
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: efs}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: aws-efs
  resources: {requests: {storage: 1Mi}}
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster with a node and a file system, without kube-efs."""

    kubectl: Kubectl
    efs: EmbeddedEfs
    file_system_id: FileSystemId
    folder: Path

    @property
    def server(self) -> str:
        """The file system's DNS name."""
        return server_names(self.file_system_id, self.efs.region)[0]

    @property
    def data(self) -> Path:
        """The directory of its files."""
        return self.efs.folder(self.file_system_id)

    def edited(self, file: str) -> str:
        """A manifest with its example values replaced, as in the README."""
        return self.filled((DEPLOY / file).read_text())

    def filled(self, text: str) -> str:
        """The text with its example values replaced."""
        example = "fs-47a2c22e.efs.us-west-2.amazonaws.com"
        text = text.replace(f"server: {example}", f"server: {self.server}")
        text = text.replace("file.system.id: fs-47a2c22e", f"file.system.id: {self.file_system_id}")
        return text.replace("aws.region: us-west-2", f"aws.region: {self.efs.region}")

    async def get(self, *arguments: str) -> Any:
        """The result of ``kubectl get`` as JSON."""
        return json.loads(await self.kubectl("get", *arguments, "-o", "json"))

    async def bound(self, claim: str) -> Any:
        """Wait until the claim is bound; returns its volume."""
        wanted = "--for=jsonpath={.status.phase}=Bound"
        await self.kubectl("wait", f"pvc/{claim}", wanted, "--timeout=50s")
        found = await self.get("pvc", claim)
        return await self.get("pv", found["spec"]["volumeName"])

    async def deployed(self) -> None:
        """Wait until the provisioner runs."""
        await self.kubectl("rollout", "status", "deployment/efs-provisioner", "--timeout=50s")


@asynccontextmanager
async def site_on(plane: ControlPlane, folder: Path) -> AsyncIterator[Site]:
    """A site on that control plane, which is started; all files are below the directory."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(plane)
        efs = await stack.enter_async_context(EmbeddedEfs(folder / "efs"))
        client = await stack.enter_async_context(connect(load_config(plane.kubeconfig)))
        kubelet = make_kubelet(
            client,
            efs,
            name=NODE,
            names=replace(OPENSHIFT_EFS_STUNNEL, namespace="default"),
            root=folder / "kubelet",
        )
        plane.take_logs_from(kubelet)
        for part in (plane.run_controllers(client, node=NODE), kubelet.run()):
            stack.push_async_callback(_end, asyncio.create_task(part))
        file_system_id = FileSystemId(await efs.create_file_system("first"))
        yield Site(Kubectl(plane.kubeconfig), efs, file_system_id, folder)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until(check: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until the condition is true; fails after the timeout."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not await check():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.1)


async def deploy_quick_start(site: Site) -> None:
    """The quick start of the README: edit the all-in-one manifest, and apply it."""
    await site.kubectl("apply", "-f", "-", stdin=site.edited("manifest.yaml"))
    await site.deployed()


async def check_quick_start(site: Site) -> None:
    """The claim of the manifest has its own volume, and a pod with the claim can write to it."""
    volume = await site.bound("efs")
    name, path = volume["metadata"]["name"], volume["spec"]["nfs"]["path"]
    assert volume["spec"]["nfs"] == {"server": site.server, "path": f"/efs-{name}"}
    assert volume["spec"]["mountOptions"] == ["vers=4.1"]
    assert volume["spec"]["capacity"] == {"storage": "1Mi"}
    assert FINALIZER in volume["metadata"]["finalizers"]
    annotations = volume["metadata"]["annotations"]
    assert annotations["pv.kubernetes.io/provisioned-by"] == "example.com/aws-efs"
    gid = int(annotations["pv.beta.kubernetes.io/gid"])
    directory = site.data / path.lstrip("/")
    assert gid == 2000
    assert _owner_and_mode(directory) == (0, gid, 0o2771)

    await site.kubectl("apply", "-f", "-", stdin=TEST_POD)
    await site.kubectl("wait", "pod/test-pod", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=50s")
    assert (directory / "SUCCESS").stat().st_gid == gid
    await site.kubectl("delete", "pod", "test-pod")


async def check_older_installation(site: Site) -> None:
    """The manifests of efs-provisioner give its volumes, and nothing else, with its permissions."""
    manifest = site.filled(OLDER_INSTALLATION)
    await site.kubectl("apply", "-f", "-", stdin=manifest)
    await site.deployed()
    volume = await site.bound("efs")
    name = volume["metadata"]["name"]
    assert volume["spec"]["nfs"] == {"server": site.server, "path": f"/efs-{name}"}
    assert FINALIZER not in volume["metadata"]["finalizers"]
    directory = site.data / f"efs-{name}"
    assert _owner_and_mode(directory) == (0, 2000, 0o2771)

    lock = await site.get("endpoints", "example.com-aws-efs")
    record = json.loads(lock["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"])
    assert record["holderIdentity"]
    [pod] = (await site.get("pods"))["items"]
    assert pod["metadata"]["labels"]["app"] == "efs-provisioner"
    for kind in ("leases", "configmaps", "pvc"):
        found = {one["metadata"]["name"] for one in (await site.get(kind))["items"]}
        assert found <= {"efs", "efs-provisioner", "kube-root-ca.crt"}, kind
    assert [one["metadata"]["name"] for one in (await site.get("pv"))["items"]] == [name]

    # Restarted, it continues with the same permissions.
    await site.kubectl("rollout", "restart", "deployment/efs-provisioner")
    await site.deployed()
    await site.kubectl("delete", "pvc", "efs")

    async def is_removed() -> bool:
        return not (await site.get("pv"))["items"]

    await until(is_removed, "the volume is removed")
    assert not directory.exists()
    await site.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=manifest)

    async def has_no_pod() -> bool:
        return not (await site.get("pods", "-l", "app=efs-provisioner"))["items"]

    await until(has_no_pod, "the provisioner's pod is gone")
    await site.kubectl("delete", "endpoints", "example.com-aws-efs", "--ignore-not-found")


async def check_stateful_set(site: Site) -> None:
    """Each pod of the README's StatefulSet has its own volume.

    Kubernetes has no apps/v1beta1 since 1.16, so it is applied as apps/v1, which requires a selector.
    """
    service, stateful_set = yaml.safe_load_all(STATEFUL_SET)
    labels = stateful_set["spec"]["template"]["metadata"]["labels"]
    stateful_set["apiVersion"] = "apps/v1"
    stateful_set["spec"]["selector"] = {"matchLabels": labels}
    manifest = yaml.safe_dump_all([service, stateful_set])
    await site.kubectl("apply", "-f", "-", stdin=manifest)
    await site.kubectl("rollout", "status", "statefulset/web", "--timeout=55s")
    volumes = [await site.bound(f"efs-web-{number}") for number in range(3)]
    paths = [volume["spec"]["nfs"]["path"] for volume in volumes]
    assert [path.partition("-pvc-")[0] for path in paths] == ["/efs-web-0", "/efs-web-1", "/efs-web-2"]
    directories = [site.data / path.lstrip("/") for path in paths]
    gids = {int(volume["metadata"]["annotations"]["pv.beta.kubernetes.io/gid"]) for volume in volumes}
    assert len(gids) == 3
    assert {_owner_and_mode(directory) for directory in directories} == {(0, gid, 0o2771) for gid in gids}
    await site.kubectl("delete", "-f", "-", stdin=manifest)
    await site.kubectl("delete", "pvc", "efs-web-0", "efs-web-1", "efs-web-2")


async def check_nothing_is_left(site: Site) -> None:
    """After the last claim, volumes and directories are removed, and the manifest can be deleted."""
    await site.kubectl("delete", "pvc", "efs")

    async def is_empty() -> bool:
        return not (await site.get("pv"))["items"]

    await until(is_empty, "every volume is removed")
    assert [path.name for path in site.data.iterdir() if "pvc" in path.name] == []
    await site.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=site.edited("manifest.yaml"))

    async def has_no_pod() -> bool:
        return not (await site.get("pods", "-l", "app=efs-provisioner"))["items"]

    await until(has_no_pod, "the provisioner's pod is gone")


# The commands of the README, except that the directory of the manifests is the current one.
_COMMANDS = r"""
set -e
kubectl create configmap efs-provisioner \
--from-literal=file.system.id={file_system_id} \
--from-literal=aws.region={region} \
--from-literal=provisioner.name=example.com/aws-efs
kubectl create -f deployment.yaml
NAMESPACE=`kubectl config get-contexts | grep '^*' | tr -s ' ' | cut -d' ' -f5`
sed -i'' "s/namespace:.*/namespace: $NAMESPACE/g" ./rbac.yaml
kubectl create -f rbac.yaml
kubectl create secret generic aws-credentials \
--from-literal=aws-access-key-id=AKIAIOSFODNN7EXAMPLE \
--from-literal=aws-secret-access-key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
kubectl create -f class.yaml
kubectl create -f claim.yaml
"""


async def check_deployment_step_by_step(site: Site, namespace: str) -> None:
    """The README's commands also work in another namespace with another directory."""
    await site.kubectl("create", "namespace", namespace)
    await site.kubectl("config", "set-context", "--current", f"--namespace={namespace}")
    (site.data / "persistentvolumes").mkdir()
    copies = site.folder / "deploy"
    copies.mkdir()
    for file in DEPLOY.iterdir():
        (copies / file.name).write_text(site.edited(file.name))
    commands = _COMMANDS.replace("{file_system_id}", site.file_system_id)
    await _run(commands.replace("{region}", site.efs.region), copies, site.kubectl)
    await site.deployed()
    volume = await site.bound("efs")
    name = volume["metadata"]["name"]
    assert volume["spec"]["nfs"]["path"] == f"/persistentvolumes/efs-{name}"
    assert _owner_and_mode(site.data / "persistentvolumes" / f"efs-{name}")[2] == 0o2771
    lease = await site.get("lease", "efs-provisioner")
    assert lease["spec"]["holderIdentity"].startswith("efs-provisioner-")


async def check_removal_of_the_provisioner(site: Site) -> None:
    """Volumes without a provisioner can be deleted as the troubleshooting page describes."""
    await site.kubectl("delete", "deployment", "efs-provisioner", "--cascade=foreground")
    await site.kubectl("delete", "pvc", "efs")
    [volume] = (await site.get("pv"))["items"]
    path = site.data / volume["spec"]["nfs"]["path"].lstrip("/")
    await site.kubectl("delete", "pv", volume["metadata"]["name"], "--wait=false")

    async def waits() -> bool:
        [waiting] = (await site.get("pv"))["items"]
        # Kubernetes' own finalizer goes by itself.
        finalizers: list[str] = waiting["metadata"]["finalizers"]
        return finalizers == [FINALIZER]

    await until(waits, "only the finalizer of the provisioner is left")
    _, _, section = TROUBLESHOOTING.read_text().partition("## Before kube-efs is removed")
    session = section.partition("\n## ")[0].split("```console\n")[1].split("```")[0]
    commands = "\n".join(line.removeprefix("$ ") for line in session.splitlines())
    await _run(commands, site.folder, site.kubectl)
    assert (await site.get("pv"))["items"] == []
    assert path.is_dir()


async def _run(commands: str, folder: Path, kubectl: Kubectl) -> None:
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        commands,
        cwd=folder,
        env={**os.environ, "KUBECONFIG": str(kubectl.kubeconfig)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(_DEADLINE_SECONDS):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


def _owner_and_mode(directory: Path) -> tuple[int, int, int]:
    found = directory.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)
