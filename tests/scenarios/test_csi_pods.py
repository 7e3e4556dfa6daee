"""Pods with volumes of the CSI driver: registration, mounts through tunnels, and unmounting."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
import yaml
from lightkube import ApiError
from lightkube.codecs import from_dict
from lightkube.generic_resource import create_global_resource
from lightkube.models.core_v1 import CSIPersistentVolumeSource, ObjectReference, PersistentVolumeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, Namespace, Node, PersistentVolume, Pod
from lightkube.resources.storage_v1 import StorageClass
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.csi_steps import DRIVER, Aws
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster

from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.mounts.mountinfo import MountEntry, read_mountinfo
from kube_efs.tunnels.status import TunnelState, TunnelStatus

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"),
]

# Word for word what a user of the AWS driver has written down.
NETUTIL = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: netutil-efs-claim1
  namespace: test
spec:
  accessModes:
    - ReadWriteMany
  storageClassName: efs-eks-v122
  resources:
    requests:
      storage: 5Gi
---
apiVersion: v1
kind: Pod
metadata:
  name: netutils-efs-1
  namespace: test
spec:
  containers:
    - name: netutil-efs-1
      image: public.ecr.aws/w0m8q0d5/common:bys-netutil
      command: ["/bin/sh"]
      args: ["-c", "while true; do echo $(date -u) >> /data/out1; sleep 5; done"]
      volumeMounts:
        - name: persistent-storage
          mountPath: /data
  volumes:
    - name: persistent-storage
      persistentVolumeClaim:
        claimName: netutil-efs-claim1
"""
# The library's own class takes no null for a list.
CSI_NODE = create_global_resource("storage.k8s.io", "v1", "CSINode", "csinodes")
FOR_EVER = "while true; do sleep 0.1; done"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aws(cluster: Cluster) -> AsyncIterator[Aws]:
    async with Aws.of(cluster) as aws:
        yield aws


# --- steps


def pod_with(
    claim: str, script: str, *, name: str, mounts: tuple[str, ...] = ("/data",), **source: object
) -> dict[str, Any]:
    """A pod that runs the script once, with a volume of the claim at each path."""
    volumes = [f"volume-{number}" for number, _ in enumerate(mounts)]
    paths = zip(volumes, mounts, strict=True)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "app",
                    "image": "centos",
                    "command": ["/bin/sh", "-c", script],
                    "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in paths],
                }
            ],
            "volumes": [
                {"name": volume, "persistentVolumeClaim": {"claimName": claim, **source}}
                for volume in volumes
            ],
        },
    }


async def create(cluster: Cluster, namespace: str, *bodies: Mapping[str, Any]) -> None:
    for body in bodies:
        placed = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
        await cluster.client.create(cast("Pod", from_dict(placed)))


async def pod(cluster: Cluster, namespace: str, name: str) -> Pod | None:
    try:
        return await cluster.client.get(Pod, name, namespace=namespace)
    except ApiError as error:
        if error.status.code == 404:
            return None
        raise


async def in_phase(cluster: Cluster, namespace: str, name: str, phase: str) -> str:
    """Wait until the pod is in that phase; returns its UID."""

    async def look() -> str | None:
        found = await pod(cluster, namespace, name)
        assert found
        assert found.metadata
        is_there = found.status is not None and found.status.phase == phase
        return found.metadata.uid if is_there else None

    return await steps.eventually(look, what=f"pod {name} is {phase}")


async def pods_gone(cluster: Cluster, namespace: str, *names: str) -> None:
    for name in names:
        if await pod(cluster, namespace, name):
            await cluster.client.delete(Pod, name, namespace=namespace, grace_period=1)

    async def look() -> bool:
        found = [await pod(cluster, namespace, name) for name in names]
        return found == [None] * len(names)

    await steps.eventually(look, what=f"the pods {', '.join(names)} are gone")


async def failed_mount(cluster: Cluster, namespace: str, name: str, about: str) -> str:
    """Wait for a FailedMount event of a pod with this text."""

    async def look() -> str | None:
        found = cluster.client.list(
            Event, namespace=namespace, fields={"involvedObject.name": name, "reason": "FailedMount"}
        )
        told = [one.message or "" async for one in found]
        return next((text for text in told if about in text), None)

    return await steps.eventually(look, what=f"pod {name} has a FailedMount event {about}")


def mount_of(cluster: Cluster, uid: str, volume: str) -> MountEntry | None:
    """The mount at the path of the kubelet for the volume of a pod."""
    place = cluster.folder / "kubelet/pods" / uid / "volumes/kubernetes.io~csi" / volume / "mount"
    return next((one for one in read_mountinfo() if one.mount_point == place.resolve()), None)


async def tunnel_for(cluster: Cluster, point: str, *, holders: int) -> TunnelStatus:
    """Wait until the tunnel of an access point is up and held by that many mounts."""

    async def look() -> TunnelStatus | None:
        found = [one for one in (await steps.tunnels(cluster)).tunnels if one.access_point_id == point]
        fits = [one for one in found if one.holders == holders and one.state is TunnelState.UP]
        return fits[0] if fits else None

    return await steps.eventually(look, what=f"{holders} mounts hold the tunnel of {point}")


async def access_point_folder(cluster: Cluster, point: str) -> Path:
    return await cluster.efs.access_point_folder(AccessPointId(point))


async def grows(path: Path) -> str:
    """Wait until a file has text; returns it."""

    async def look() -> str:
        try:
            return await asyncio.to_thread(path.read_text)
        except FileNotFoundError:
            return ""

    return await steps.eventually(look, what=f"{path.name} has been written")


async def static_volume(cluster: Cluster, claims: Claims, name: str, handle: str) -> None:
    """Create a volume with that handle, bound to a claim of the same name."""
    volume = f"{claims.namespace}-{name}"
    body = claims.body(name, "")
    assert body.spec
    body.spec.volumeName = volume
    spec = PersistentVolumeSpec(
        accessModes=["ReadWriteMany"],
        capacity={"storage": "5Gi"},
        persistentVolumeReclaimPolicy="Retain",
        storageClassName="",
        csi=CSIPersistentVolumeSource(driver=DRIVER, volumeHandle=handle),
        claimRef=ObjectReference(
            apiVersion="v1", kind="PersistentVolumeClaim", namespace=claims.namespace, name=name
        ),
    )
    await cluster.client.create(PersistentVolume(metadata=ObjectMeta(name=volume), spec=spec))
    await cluster.client.create(body)
    await claims.bound(name)


async def provisioned(cluster: Cluster, name: str) -> tuple[Claims, str, str]:
    """A claim of that name, its volume's name, and its access point."""
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    storage_class = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    volume = await claims.provisioned(storage_class, name)
    point = csi_steps.handle_of(volume).access_point_id
    assert point
    return claims, volume.name, point


# --- the example of the AWS driver's users


async def test_pod_of_the_older_example_writes_and_another_reads(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    space = claims.namespace
    await cluster.client.create(csi_steps.seed_class(system))
    await cluster.client.create(csi_steps.seed_claim(space))
    await create(cluster, space, yaml.safe_load(csi_steps.SEED_POD))

    uid = await in_phase(cluster, space, "efs-app-1", "Running")

    volume = await claims.bound("efs-claim-1")
    point = csi_steps.handle_of(volume).access_point_id
    assert point
    folder = await access_point_folder(cluster, point)
    assert folder == cluster.efs.folder(system) / "dynamic_provisioning" / volume.name
    assert (folder.stat().st_uid, folder.stat().st_gid, folder.stat().st_mode & 0o777) == (1000, 1000, 0o700)
    assert "UTC" in await grows(folder / "out1")
    assert mount_of(cluster, uid, volume.name)
    tunnel = await tunnel_for(cluster, point, holders=1)
    assert (tunnel.file_system_id, tunnel.on_demand) == (system, True)

    await create(cluster, space, pod_with("efs-claim-1", "grep UTC /data/out1", name="reader"))
    other = await in_phase(cluster, space, "reader", "Succeeded")
    await steps.eventually(
        lambda: asyncio.to_thread(lambda: mount_of(cluster, other, volume.name) is None),
        what="the ended pod has nothing mounted",
    )

    await pods_gone(cluster, space, "efs-app-1", "reader")
    assert mount_of(cluster, uid, volume.name) is None
    await tunnel_for(cluster, point, holders=0)
    await csi_steps.removed(cluster, claims, "efs-claim-1")
    assert point not in await aws.ids(system)
    await cluster.client.delete(StorageClass, "efs-sc-1")


async def test_first_older_example_is_mounted_at_the_path_of_the_kubelet(cluster: Cluster) -> None:
    await cluster.client.create(Namespace(metadata=ObjectMeta(name="test")))
    storage_class = csi_steps.seed_class(cluster.file_system_ids[0])
    assert storage_class.metadata
    storage_class.metadata.name = "efs-eks-v122"
    await cluster.client.create(storage_class)
    await create(cluster, "test", *yaml.safe_load_all(NETUTIL))

    uid = await in_phase(cluster, "test", "netutils-efs-1", "Running")

    claims = Claims(cluster, "test")
    volume = await claims.bound("netutil-efs-claim1")
    point = csi_steps.handle_of(volume).access_point_id
    assert point
    assert mount_of(cluster, uid, volume.name)
    tunnel = await tunnel_for(cluster, point, holders=1)
    configurations = [path.read_text() for path in (cluster.folder / "tunnel").glob("stunnel-*.conf")]
    assert any(f"accept = 127.0.0.1:{tunnel.port}\n" in one for one in configurations)
    await grows(await access_point_folder(cluster, point) / "out1")
    await pods_gone(cluster, "test", "netutils-efs-1")
    await csi_steps.removed(cluster, claims, "netutil-efs-claim1")


# --- the driver and its kubelet


async def drivers(cluster: Cluster) -> list[dict[str, Any]]:
    found = await cluster.client.get(CSI_NODE, "embedded")
    return found["spec"]["drivers"] or []


async def test_kubelet_registers_the_driver_in_the_cluster(cluster: Cluster) -> None:
    instance = cluster.efs.instance_id
    topology = "topology.kubernetes.io/zone"
    registered = [{"name": DRIVER, "nodeID": instance, "topologyKeys": [topology]}]
    assert await drivers(cluster) == registered
    node = await cluster.client.get(Node, "embedded")
    assert node.metadata
    assert node.metadata.labels
    assert node.metadata.labels[topology] == "us-east-1a"
    assert node.metadata.annotations
    noted = json.loads(node.metadata.annotations["csi.volume.kubernetes.io/nodeid"])
    assert noted == {DRIVER: instance}

    async def is_forgotten() -> bool:
        return await drivers(cluster) == []

    async with directory_steps.switched_off(cluster.node):
        await steps.eventually(is_forgotten, what="the driver that has ended is forgotten")
    assert await drivers(cluster) == registered


async def test_pods_of_one_access_point_share_its_tunnel(cluster: Cluster) -> None:
    claims, volume, point = await provisioned(cluster, "shared")
    bodies = [pod_with("shared", FOR_EVER, name=name) for name in ("one", "two")]
    await create(cluster, claims.namespace, *bodies)
    uids = [await in_phase(cluster, claims.namespace, name, "Running") for name in ("one", "two")]
    assert all(mount_of(cluster, uid, volume) for uid in uids)
    await tunnel_for(cluster, point, holders=2)
    await pods_gone(cluster, claims.namespace, "one")
    await tunnel_for(cluster, point, holders=1)
    assert mount_of(cluster, uids[1], volume)
    await pods_gone(cluster, claims.namespace, "two")


async def test_claim_used_twice_by_a_pod_is_mounted_once(cluster: Cluster) -> None:
    claims, _, point = await provisioned(cluster, "twice")
    script = "echo hello > /one/file && grep hello /two/file"
    await create(cluster, claims.namespace, pod_with("twice", script, name="both", mounts=("/one", "/two")))
    await in_phase(cluster, claims.namespace, "both", "Succeeded")
    await tunnel_for(cluster, point, holders=0)


async def test_read_only_claim_cannot_be_written(cluster: Cluster) -> None:
    claims, _, point = await provisioned(cluster, "guarded")
    folder = await access_point_folder(cluster, point)
    (folder / "kept").write_text("hello")
    script = "grep hello /data/kept && ! touch /data/new"
    await create(cluster, claims.namespace, pod_with("guarded", script, name="reader", readOnly=True))
    await in_phase(cluster, claims.namespace, "reader", "Succeeded")
    assert not (folder / "new").exists()


async def test_path_of_a_file_system_is_mounted_without_an_access_point(cluster: Cluster) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[1]
    folder = cluster.efs.folder(system) / "teams/blue"
    folder.mkdir(parents=True)
    await static_volume(cluster, claims, "blue", f"{system}:/teams/blue")
    await create(cluster, claims.namespace, pod_with("blue", "echo hello > /data/file", name="writer"))
    await in_phase(cluster, claims.namespace, "writer", "Succeeded")
    assert (folder / "file").read_text() == "hello\n"


async def test_failed_mount_is_reported_and_retried_until_it_succeeds(cluster: Cluster) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[1]
    await static_volume(cluster, claims, "later", f"{system}:/later")
    await create(cluster, claims.namespace, pod_with("later", "echo hello > /data/file", name="early"))

    told = await failed_mount(cluster, claims.namespace, "early", "No such file or directory")

    assert told.startswith('MountVolume.SetUp failed for volume "volume-0" : rpc error: code = ')
    (cluster.efs.folder(system) / "later").mkdir()
    await in_phase(cluster, claims.namespace, "early", "Succeeded")


async def test_missing_access_point_refuses_every_mount(cluster: Cluster) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    point = "fsap-00000000000000000"
    await static_volume(cluster, claims, "nowhere", f"{system}::{point}")
    await create(cluster, claims.namespace, pod_with("nowhere", "true", name="lost"))
    await failed_mount(cluster, claims.namespace, "lost", "access denied by server")
    await pods_gone(cluster, claims.namespace, "lost")


async def test_killed_driver_does_not_stop_pods_and_unmounts_after_its_restart(
    cluster: Cluster,
) -> None:
    claims, volume, point = await provisioned(cluster, "steady")
    space = claims.namespace
    script = "while true; do date >> /data/log; sleep 0.1; done"
    await create(cluster, space, pod_with("steady", script, name="writer"))
    uid = await in_phase(cluster, space, "writer", "Running")
    log = await access_point_folder(cluster, point) / "log"
    before = await grows(log)
    await cluster.node.kill()

    async def has_grown() -> bool:
        return len(await grows(log)) > len(before)

    await steps.eventually(has_grown, what="the pod continues to write")
    await cluster.client.delete(Pod, "writer", namespace=space, grace_period=1)
    await create(cluster, space, pod_with("steady", "true", name="next"))
    await failed_mount(cluster, space, "next", "code = Unavailable")
    assert await pod(cluster, space, "writer")
    assert mount_of(cluster, uid, volume)

    await cluster.node.start()
    await cluster.node.ready()

    await pods_gone(cluster, space, "writer")
    assert mount_of(cluster, uid, volume) is None
    await in_phase(cluster, space, "next", "Succeeded")
    await tunnel_for(cluster, point, holders=0)
