"""Migration of claims from NFS volumes to CSI volumes and back, with data, pods and a kill."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from lightkube import ApiError
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod
from tests.scenarios import directory_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.faulty_api import Call, Exchange, Fault, FaultyApi
from tests.scenarios.steps import Cluster

from kube_efs.migration.cluster import MigrationStore
from kube_efs.migration.moving import move_claim
from kube_efs.migration.plan import Direction, Migration, Selection, plan
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.model.volumes import VolumePhase
from kube_efs_lab.control_plane import ControlPlane
from kube_efs_lab.real_control_plane import ServiceAccountName
from kube_efs_lab.real_plane import RealPlane

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"),
]


# What docs/migration.md asks for, and nothing else.
RIGHTS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: migrator}
rules:
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, create, patch, delete]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, create, patch, delete]}
- {apiGroups: [""], resources: [pods], verbs: [list]}
- {apiGroups: [storage.k8s.io], resources: [csidrivers], verbs: [get]}
- {apiGroups: [""], resources: [configmaps], resourceNames: [CONFIG_MAP], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: migrator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: migrator}
subjects: [{kind: ServiceAccount, name: migrator, namespace: default}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: migrator, namespace: default}
""".replace("CONFIG_MAP", NEW_INSTALLATION.names.config_map)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def migrator(cluster: Cluster, plane: ControlPlane) -> Path:
    """The kubeconfig of a user with these permissions; the embedded API server allows everything."""
    if not isinstance(plane, RealPlane):
        return cluster.kubeconfig
    for body in yaml.safe_load_all(RIGHTS):
        await cluster.client.create(from_dict(body))
    return await plane.plane.kubeconfig(ServiceAccountName("default", "migrator"))


@asynccontextmanager
async def migrating(
    kubeconfig: Path, namespace: str, *arguments: str
) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """The running command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kube_efs", "migrate", "--kubeconfig", str(kubeconfig), "-n", namespace),
        *("--output", "json", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def migrate(kubeconfig: Path, namespace: str, *arguments: str) -> tuple[int | None, dict[str, Any]]:
    """The exit status of the command, and its output for the only claim."""
    async with migrating(kubeconfig, namespace, *arguments) as process:
        out, err = await process.communicate()
        answer = json.loads(out)
        assert answer["ok"] is (process.returncode == 0), err.decode()
        assert len(answer["claims"]) == 1, answer
        return process.returncode, answer["claims"][0]


async def moved(cluster: Cluster, namespace: str, direction: Direction) -> None:
    """Move the only claim as the command does, without another process."""
    store = MigrationStore(cluster.client)
    state = await store.state(cluster.names, namespace, {})
    (migration,) = plan(state, Selection(namespace=namespace), direction)
    assert isinstance(migration, Migration)
    await move_claim(store, migration, lambda _: None)


async def runs(cluster: Cluster, namespace: str, script: str, *, user: int = 0) -> None:
    """Run the script in a pod with the claim ``data``; it must succeed, and the pod is deleted."""
    await start(cluster, namespace, script, user=user)

    async def look() -> bool:
        found = await cluster.client.get(Pod, "app", namespace=namespace)
        phase = found.status and found.status.phase
        assert phase != "Failed", script
        return phase == "Succeeded"

    await steps.eventually(look, what=f"the pod has done: {script}")
    await ended(cluster, namespace)


async def start(cluster: Cluster, namespace: str, script: str, *, user: int = 0) -> None:
    container = {
        "name": "app",
        "image": "app",
        "command": ["/bin/sh", "-ec", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsUser": user},
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    metadata = {"name": "app", "namespace": namespace}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    await cluster.client.create(cast("Pod", from_dict(body)))


async def ended(cluster: Cluster, namespace: str) -> None:
    await cluster.client.delete(Pod, "app", namespace=namespace, grace_period=0)
    await steps.eventually(lambda: _is_gone(cluster, Pod, "app", namespace), what="the pod is gone")


async def _is_gone(
    cluster: Cluster, kind: type[Pod] | type[PersistentVolumeClaim], name: str, namespace: str
) -> bool:
    try:
        await cluster.client.get(kind, name, namespace=namespace)
    except ApiError as error:
        return error.status.code == 404
    return False


class Holding:
    """Holds the creation of claims permanently."""

    def __init__(self) -> None:
        self.held = asyncio.Event()

    def __call__(self, call: Call) -> Fault | None:
        return self._hold if (call.method, call.resource) == ("POST", "persistentvolumeclaims") else None

    async def _hold(self, _: Exchange) -> web.StreamResponse:
        self.held.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody releases it")


async def test_migration_killed_between_old_and_new_claim_continues(
    cluster: Cluster, migrator: Path, tmp_path: Path
) -> None:
    claims = await Claims.of(cluster)
    space, client, system = claims.namespace, cluster.client, cluster.file_system_ids[1]
    storage_class = await steps.new_class(client, default_file_system_id=system)
    await client.create(steps.claim(space, "data", storage_class, {"volume_name": "web"}))
    old = await claims.bound("data")
    folder = cluster.efs.folder(system) / space / "web"

    await start(cluster, space, "echo before > /data/file; sleep 600")
    await steps.eventually(lambda: _reads(folder / "file", "before\n"), what="the pod has written")
    status, told = await migrate(migrator, space, "--yes")
    assert (status, told["state"]) == (1, "in use")
    assert "'app' is in use" in told["reason"]
    assert await claims.bound("data") == old
    await ended(cluster, space)

    holding = Holding()
    async with FaultyApi(migrator, tmp_path / "kubeconfig") as api:
        api.fault = holding
        async with migrating(api.kubeconfig, space, "--yes") as process:
            await asyncio.wait_for(holding.held.wait(), 60)
            process.kill()
    assert await _is_gone(cluster, PersistentVolumeClaim, "data", space)
    assert (await directory_steps.reaches_phase(cluster, old.name, VolumePhase.RELEASED)).reclaim_policy is (
        ReclaimPolicy.RETAIN
    )
    assert await _reads(folder / "file", "before\n")

    status, told = await migrate(migrator, space, "--yes")
    assert (status, told["state"]) == (0, "done")
    new = await claims.bound("data")
    assert new.csi
    assert (new.csi.handle, new.reclaim_policy) == (f"efs:{system}:/./{space}/web", ReclaimPolicy.DELETE)
    await steps.gone(client, old.name)
    await runs(cluster, space, "grep before /data/file; echo after > /data/file")
    assert await _reads(folder / "file", "after\n")

    await claims.delete("data")
    await steps.gone(client, new.name)
    assert not await asyncio.to_thread(folder.exists)


async def _reads(file: Path, text: str) -> bool:
    return await asyncio.to_thread(file.exists) and await asyncio.to_thread(file.read_text) == text


async def test_directory_volume_keeps_its_group_in_both_directions(cluster: Cluster) -> None:
    claims = await Claims.of(cluster)
    storage_class = await directory_steps.new_class(cluster.client, gidMin="41000", gidMax="41999")
    old = await claims.provisioned(storage_class, "data")
    folder, space = directory_steps.folder(cluster, old), claims.namespace
    assert old.gid
    await runs(cluster, space, "echo nfs > /data/file", user=1001)

    await moved(cluster, space, Direction.FORWARD)
    new = await claims.bound("data")
    assert new.csi
    assert (new.gid, new.csi.handle) == (old.gid, f"efs:{cluster.file_system_ids[0]}:/./{folder.name}")
    await runs(cluster, space, "grep nfs /data/file; echo csi > /data/other", user=1002)
    assert (await asyncio.to_thread((folder / "other").stat)).st_gid == old.gid

    await moved(cluster, space, Direction.BACK)
    back = await claims.bound("data")
    assert (back.name, back.nfs, back.gid) == (old.name, old.nfs, old.gid)
    await runs(cluster, space, "grep csi /data/other", user=1003)
    await claims.removed("data")
