"""The real control plane of the tests: its version, start, restart and end."""

import asyncio
import json
import re
from pathlib import Path

import psutil
import pytest
import yaml
from lightkube import AsyncClient
from lightkube.core.resource import Resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import ConfigMap, Pod
from structlog.testing import capture_logs
from tests.child_processes import children_with
from tests.conformance.kubectl import Kubectl
from tests.conformance.programs import PROGRAMS

from fake_efs.errors import PlatformError
from kube_efs.controllers.targets_size import LIMIT_BYTES
from kube_efs.kube import watching
from kube_efs.kube.errors import translated
from kube_efs.kube.snapshots import VolumeSnapshotContent
from kube_efs.kube.watching import Applied, Listed, follow
from kube_efs.model.errors import KubeNotFound
from kube_efs_lab.real_control_plane import RealControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The claim of openshift-efs-stunnel's own page, and the volume that kube-efs makes for it.
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: efs-example
spec:
  accessModes:
  - ReadWriteMany
  resources:
    requests:
      storage: 1Gi
  selector:
    matchLabels:
      volume_name: example
  storageClassName: efs-stunnel
"""
VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata:
  name: efs-example
  labels: {{volume_name: example}}
spec:
  accessModes: [ReadWriteMany]
  capacity: {{storage: 1Gi}}
  claimRef: {{apiVersion: v1, kind: PersistentVolumeClaim, namespace: default, name: efs-example, uid: {uid}}}
  mountOptions: [port=20490]
  nfs: {{server: 127.0.0.1, path: /default/example}}
  persistentVolumeReclaimPolicy: Retain
  storageClassName: efs-stunnel
"""


async def test_control_plane_has_the_pinned_version(kubectl: Kubectl) -> None:
    if (PROGRAMS / "kube-apiserver").resolve().parent != PROGRAMS.parent:
        pytest.skip("KUBEBUILDER_ASSETS selects another version than the pinned one")
    versions = json.loads(await kubectl("version", "--output", "json"))
    pinned = (Path(__file__).parent / "tools" / "go.mod").read_text(encoding="utf-8")
    version = re.escape(versions["serverVersion"]["gitVersion"])
    assert re.search(rf"\bk8s\.io/kubernetes {version}\s", pinned)


async def test_volume_with_a_claim_reference_is_bound_and_released_with_its_claim(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=CLAIM)
    claim = json.loads(await kubectl("get", "pvc", "efs-example", "-o", "json"))
    assert claim["status"]["phase"] == "Pending"
    assert claim["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]

    await kubectl("apply", "-f", "-", stdin=VOLUME.format(uid=claim["metadata"]["uid"]))
    await kubectl("wait", "pvc/efs-example", "--for=jsonpath={.status.phase}=Bound", "--timeout=100s")
    described = await kubectl("describe", "pv", "efs-example")
    assert re.search(r"^Status: +Bound$", described, flags=re.MULTILINE)
    assert re.search(r"^Finalizers: +\[kubernetes.io/pv-protection\]$", described, flags=re.MULTILINE)

    await kubectl("delete", "pvc", "efs-example", "--timeout=100s")
    await kubectl("wait", "pv/efs-example", "--for=jsonpath={.status.phase}=Released", "--timeout=100s")
    await kubectl("delete", "pv", "efs-example", "--timeout=100s")


async def test_owned_object_is_deleted_with_its_owner(kubectl: Kubectl) -> None:
    await kubectl("create", "configmap", "owner")
    uid = await kubectl("get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    owned = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "owned", "ownerReferences": [owner]},
    }
    await kubectl("create", "-f", "-", stdin=yaml.safe_dump(owned))

    await kubectl("delete", "configmap", "owner")
    await kubectl("wait", "configmap/owned", "--for=delete", "--timeout=100s")


async def test_kind_that_does_not_exist_differs_from_the_404_of_a_proxy(client: AsyncClient) -> None:
    """A proxy before the API server may answer 404, too, and must not hide the objects of a kind."""
    with pytest.raises(KubeNotFound), translated("list VolumeSnapshotContent"):
        _ = [one async for one in client.list(VolumeSnapshotContent)]
    with pytest.raises(KubeNotFound), translated("VolumeSnapshotContent a"):
        await client.get(VolumeSnapshotContent, "a")


async def test_config_map_has_room_for_a_mebibyte_of_data(kubectl: Kubectl) -> None:
    """The controller reports earlier that the tunnel targets do not fit."""

    def of(size: int) -> str:
        data = {"targets": "t" * (size - 5), "zones": "zones"}
        metadata = {"name": "large"}
        return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

    refused = await kubectl.run("create", "-f", "-", stdin=of(LIMIT_BYTES + 1))
    assert "may not be more than 1048576 bytes" in refused.errors
    await kubectl("create", "-f", "-", stdin=of(LIMIT_BYTES))


async def test_watches_continue_after_the_api_server_is_killed(
    control_plane: RealControlPlane, client: AsyncClient
) -> None:
    fields = {"metadata.name": "seen"}
    stream = follow(client, ConfigMap, namespace="default", fields=fields)
    async with asyncio.timeout(60):
        assert await anext(stream) == Listed(())
        await control_plane.restart_api_server()
        await client.create(ConfigMap(metadata=ObjectMeta(name="seen", namespace="default")))
        async for change in stream:
            if isinstance(change, Applied) or (isinstance(change, Listed) and change.objects):
                break
    await stream.aclose()


async def test_bookmarks_of_kinds_with_required_fields_do_not_interrupt_a_watch(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server sends one each minute."""
    bookmarks: set[str] = set()
    read_event = watching._read_event

    def note(line: bytes, kind: type[Resource]) -> tuple[str, object, str]:
        event = read_event(line, kind)
        if event[0] == "BOOKMARK":
            bookmarks.add(kind.__name__)
        return event

    async def read(kind: type[Resource]) -> None:
        async for _ in follow(client, kind, namespace="default"):
            pass

    monkeypatch.setattr(watching, "_read_event", note)
    with capture_logs() as logs:
        reading = [asyncio.create_task(read(kind)) for kind in (Pod, DaemonSet)]
        async with asyncio.timeout(240):
            while bookmarks != {"Pod", "DaemonSet"}:  # noqa: ASYNC110 - seen by a function without a loop
                await asyncio.sleep(0.1)
        for one in reading:
            one.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    assert logs == []


async def test_control_plane_leaves_no_process_behind(tmp_path: Path) -> None:
    def programs() -> dict[str, psutil.Process]:
        return {one.name(): one for one in children_with(lambda line: str(tmp_path) in " ".join(line))}

    async with RealControlPlane(tmp_path, PROGRAMS):
        running = programs()
    assert running.keys() == {"etcd", "kube-apiserver", "kube-controller-manager"}
    assert programs() == {}


async def test_early_end_of_a_program_is_reported_with_its_last_output(tmp_path: Path) -> None:
    (tmp_path / "etcd").write_text("no directory")
    with pytest.raises(PlatformError, match="etcd"):
        async with RealControlPlane(tmp_path, PROGRAMS):
            pass
