"""The embedded API server as people see it: through kubectl."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tinykube.api import ApiServer

KUBECTL = shutil.which("kubectl")
DEADLINE_SECONDS = 60.0
CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: efs
provisioner: example.com/efs
"""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
  labels: {app: web}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: efs
  resources: {requests: {storage: 1Gi}}
"""
VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata:
  name: v1
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 1Gi}
  storageClassName: efs
  nfs: {server: 127.0.0.1, path: /data}
"""
DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.com
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size: {type: integer, default: 3}
"""
WIDGET = """
apiVersion: example.com/v1
kind: Widget
metadata:
  name: one
spec: {}
"""

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[list[str]]:
        """The words of each line."""
        return [line.split() for line in self.out.splitlines() if line.strip()]


class Kubectl:
    """Runs kubectl against the server; ``start`` leaves it running."""

    def __init__(self, kubeconfig: Path) -> None:
        # A home of its own, or kubectl would take an old server's discovery from its cache.
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(kubeconfig.parent),
            "KUBECTL_EXTERNAL_DIFF": "diff -u",
        }

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(KUBECTL),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )

    async def run(self, *arguments: str, given: str = "") -> Ended:
        process = await self.start(*arguments)
        async with asyncio.timeout(DEADLINE_SECONDS):
            out, err = await process.communicate(given.encode())
        return Ended(code=process.returncode or 0, out=out.decode(), err=err.decode())

    async def __call__(self, *arguments: str, given: str = "") -> Ended:
        ended = await self.run(*arguments, given=given)
        assert ended.code == 0, ended.err
        return ended

    async def get(self, *arguments: str) -> Any:
        return json.loads((await self("get", *arguments, "-o", "json")).out)


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    async with ApiServer() as server:
        path = tmp_path / "kubeconfig"
        server.write_kubeconfig(path)
        assert path.stat().st_mode & 0o777 == 0o600
        yield Kubectl(path)


async def test_applying_twice_changes_nothing_the_second_time(kubectl: Kubectl) -> None:
    manifest = "---".join((CLASS, CLAIM, VOLUME))
    first = await kubectl("apply", "-f", "-", given=manifest)
    assert [words[1] for words in first.lines] == ["created"] * 3
    again = await kubectl("apply", "-f", "-", given=manifest)
    assert again.lines == [
        ["storageclass.storage.k8s.io/efs", "unchanged"],
        ["persistentvolumeclaim/data", "unchanged"],
        ["persistentvolume/v1", "unchanged"],
    ]
    assert (await kubectl("diff", "-f", "-", given=manifest)).out == ""


async def test_applying_a_change_configures(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", given=CLAIM)
    changed = CLAIM.replace("app: web", "app: api")
    assert (await kubectl("apply", "-f", "-", given=changed)).out == "persistentvolumeclaim/data configured\n"
    assert (await kubectl.get("pvc", "data"))["metadata"]["labels"] == {"app": "api"}


async def test_applying_on_the_server_side_takes_over_fields(kubectl: Kubectl) -> None:
    await kubectl("apply", "--server-side", "--field-manager=first", "-f", "-", given=CLAIM)
    changed = CLAIM.replace("app: web", "app: api")
    await kubectl("apply", "--server-side", "--field-manager=second", "-f", "-", given=changed)
    label = "jsonpath={.metadata.labels.app}"
    assert (await kubectl("get", "pvc", "data", "-o", label)).out == "api"


async def test_unknown_fields_are_refused(kubectl: Kubectl) -> None:
    refused = await kubectl.run("apply", "-f", "-", given=CLAIM + "  colour: red\n")
    assert refused.code != 0
    assert 'unknown field "spec.colour"' in refused.err


async def test_tables_have_the_columns_people_know(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", given="---".join((CLASS, CLAIM, VOLUME)))
    assert (await kubectl("get", "pvc")).lines[0][:6] == [
        "NAME",
        "STATUS",
        "VOLUME",
        "CAPACITY",
        "ACCESS",
        "MODES",
    ]
    wide = await kubectl("get", "pvc,pv,sc,events", "-A", "-o", "wide")
    assert "persistentvolumeclaim/data" in wide.out
    assert "RECLAIMPOLICY" in wide.out


async def test_a_claim_is_described_with_its_events(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", given=CLAIM)
    uid = (await kubectl.get("pvc", "data"))["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "data.1", "namespace": "default"},
        "involvedObject": {
            "kind": "PersistentVolumeClaim",
            "name": "data",
            "namespace": "default",
            "uid": uid,
        },
        "reason": "Provisioning",
        "message": "on its way",
        "type": "Normal",
        "source": {"component": "tests"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    }
    await kubectl("create", "-f", "-", given=json.dumps(event))
    described = (await kubectl("describe", "pvc", "data")).out
    assert "StorageClass:  efs" in described
    assert "Provisioning" in described
    assert "on its way" in described


async def test_labels_annotations_and_patches(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", given=CLAIM)
    await kubectl("label", "pvc", "data", "tier=front")
    await kubectl("annotate", "pvc", "data", "note=hello")
    await kubectl("patch", "pvc", "data", "-p", '{"metadata": {"labels": {"app": null}}}')
    operations = '[{"op": "replace", "path": "/metadata/labels/tier", "value": "back"}]'
    await kubectl("patch", "pvc", "data", "--type=json", "-p", operations)
    metadata = (await kubectl.get("pvc", "data"))["metadata"]
    assert metadata["labels"] == {"tier": "back"}
    assert metadata["annotations"]["note"] == "hello"
    assert (
        await kubectl("get", "pvc", "-l", "tier=back", "-o", "name")
    ).out.strip() == "persistentvolumeclaim/data"


async def test_editing_replaces_what_changed(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", given=CLAIM)
    kubectl._environment["KUBE_EDITOR"] = "sed -i s/app:.web/app:\\ edited/"
    await kubectl("edit", "pvc", "data")
    assert (await kubectl.get("pvc", "data"))["metadata"]["labels"] == {"app": "edited"}


async def test_waiting_for_a_phase_and_for_the_end(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", given=CLAIM)
    waiting = await kubectl.start("wait", "pvc/data", "--for=jsonpath={.status.phase}=Bound", "--timeout=50s")
    await kubectl("patch", "pvc", "data", "--subresource=status", "-p", '{"status": {"phase": "Bound"}}')
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await waiting.wait() == 0
    deleting = await kubectl.start("delete", "pvc", "data")
    gone = await kubectl.start("wait", "pvc/data", "--for=delete", "--timeout=50s")
    await kubectl("patch", "pvc", "data", "-p", '{"metadata": {"finalizers": null}}')
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await deleting.wait() == 0
        assert await gone.wait() == 0
    missing = await kubectl.run("get", "pvc", "data")
    assert missing.err == 'Error from server (NotFound): persistentvolumeclaims "data" not found\n'


async def test_watching_prints_a_line_for_each_change(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", given=CLAIM)
    watching = await kubectl.start("get", "pvc", "-w")
    assert watching.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await watching.stdout.readline()).split()[:2] == [b"NAME", b"STATUS"]
            assert (await watching.stdout.readline()).split()[:2] == [b"data", b"Pending"]
            patch = '{"status": {"phase": "Bound"}}'
            await kubectl("patch", "pvc", "data", "--subresource=status", "-p", patch)
            assert (await watching.stdout.readline()).split()[:2] == [b"data", b"Bound"]
    finally:
        watching.terminate()
        await watching.communicate()


async def test_custom_resources_come_and_go(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", given=DEFINITION)
    await kubectl("wait", "--for=condition=established", "crd/widgets.example.com", "--timeout=50s")
    await kubectl("apply", "-f", "-", given=WIDGET)
    assert (await kubectl("get", "wd")).lines == [["NAME", "SIZE"], ["one", "3"]]
    assert "widgets" in (await kubectl("api-resources", "--api-group=example.com")).out
    await kubectl("delete", "crd", "widgets.example.com")
    assert (await kubectl.run("get", "wd")).code != 0


@pytest.mark.parametrize(
    ("arguments", "plural"),
    [
        pytest.param(("namespace", "more"), "namespaces", id="namespace"),
        pytest.param(("configmap", "more", "--from-literal=a=b"), "configmaps", id="config map"),
        pytest.param(("secret", "generic", "more", "--from-literal=a=b"), "secrets", id="secret"),
        pytest.param(("serviceaccount", "more"), "serviceaccounts", id="service account"),
        pytest.param(("role", "more", "--verb=get", "--resource=pods"), "roles", id="role"),
    ],
)
async def test_what_create_makes_from_arguments(
    kubectl: Kubectl, arguments: tuple[str, ...], plural: str
) -> None:
    await kubectl("create", *arguments)
    assert (await kubectl.get(plural, "more"))["metadata"]["name"] == "more"


@pytest.mark.parametrize(
    ("arguments", "check"),
    [
        pytest.param(("version",), lambda out: "Server Version: v1." in out, id="version"),
        pytest.param(("api-versions",), lambda out: "storage.k8s.io/v1" in out, id="versions"),
        pytest.param(("api-resources",), lambda out: "pvc" in out, id="resources"),
        pytest.param(("auth", "whoami"), lambda out: "administrator" in out, id="identity"),
        pytest.param(("get", "--raw", "/readyz"), lambda out: out == "ok", id="health"),
    ],
)
async def test_what_the_server_says_about_itself(
    kubectl: Kubectl, arguments: tuple[str, ...], check: Callable[[str], bool]
) -> None:
    assert check((await kubectl(*arguments)).out)


async def test_logs_come_from_whoever_runs_the_pods(tmp_path: Path) -> None:
    class Logs:
        async def read(
            self, namespace: str, name: str, container: str, *, follow: bool, tail_lines: int | None
        ) -> AsyncGenerator[bytes, None]:
            yield f"{namespace}/{name}/{container} {follow} {tail_lines}\n".encode()
            yield b"second\n"

    async with ApiServer(pod_logs=Logs()) as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        kubectl = Kubectl(tmp_path / "kubeconfig")
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "one"},
            "spec": {"containers": [{"name": "main", "image": "busybox"}]},
        }
        await kubectl("create", "-f", "-", given=json.dumps(pod))
        assert (await kubectl("logs", "one", "--tail=5")).out == "default/one/main False 5\nsecond\n"
        for option, told in (
            ("--since=1h", "lines of logs have no times in the embedded cluster: leave out --since"),
            ("--timestamps", "leave out --timestamps"),
        ):
            assert told in (await kubectl.run("logs", "one", option)).err
        pod["status"] = {"phase": "Running"}
        await kubectl("replace", "--subresource=status", "-f", "-", given=json.dumps(pod))
        refused = await kubectl.run("logs", "one", "-c", "other")
        assert "container other is not valid for pod one" in refused.err
