"""Root claims and volumes on the embedded API server."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import (
    Container,
    PersistentVolumeClaimSpec,
    PodSpec,
    VolumeResourceRequirements,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod
from lightkube.types import PatchType

from kube_efs.controllers.root_volumes import RootVolumes
from kube_efs.kube.reading import read_volume
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import KubeAlreadyExists, KubeConflict
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.pod_objects import observe_pod
from kube_efs.provisioning.workers.roots import root_objects

PROVISIONER = "gnuthought.com/efs-stunnel"


class Installation:
    """A controller that manages root volumes in the namespace default."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._index = VolumeIndex()
        self.released: list[str] = []
        self.roots = RootVolumes(
            client, self._index, namespace="default", provisioner=PROVISIONER, release=self._release
        )

    async def _release(self, root_claim: str) -> None:
        """Remove the finalizers of the root claim while it exists, as when no pod uses it."""
        assert root_claim in await self.claims()
        self.released.append(root_claim)

    async def follow(self, **ports: int) -> None:
        """Reconcile the roots of these file systems with the current volumes."""
        listing = self._client.list(PersistentVolume)
        self._index.replace_volumes([read_volume(item.to_dict()) async for item in listing])
        await self.follow_late(**ports)

    async def follow_late(self, **ports: int) -> None:
        """The same with the volumes of the last time, as when watches are late."""
        ids = {FileSystemId(name.replace("_", "-")): port for name, port in ports.items()}
        await self.roots.follow(
            TunnelTargets(
                targets={fs: TunnelTarget(file_system_id=fs, port=port) for fs, port in ids.items()}
            )
        )

    async def claims(self) -> dict[str, dict[str, Any]]:
        listing = self._client.list(PersistentVolumeClaim, namespace="default")
        return {body["metadata"]["name"]: body async for body in (item.to_dict() async for item in listing)}

    async def volumes(self) -> dict[str, dict[str, Any]]:
        listing = self._client.list(PersistentVolume)
        return {body["metadata"]["name"]: body async for body in (item.to_dict() async for item in listing)}


@pytest.fixture
def here(kube: AsyncClient) -> Installation:
    return Installation(kube)


def versions(objects: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    return {name: body["metadata"]["resourceVersion"] for name, body in objects.items()}


async def test_root_claim_and_volume_match_the_contract(here: Installation) -> None:
    await here.follow(fs_1=20490)
    claim, volume = (await here.claims())["efs-stunnel-fs-1"], (await here.volumes())["efs-stunnel-fs-1"]
    assert claim["metadata"]["annotations"] == {"volume.beta.kubernetes.io/storage-provisioner": PROVISIONER}
    assert claim["spec"]["storageClassName"] == "efs-stunnel-system"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
    labels = claim["spec"]["selector"]["matchLabels"]
    assert labels["file_system_id"] == "fs-1"
    assert re.fullmatch("[a-z0-9]{10}", labels["root_key"])
    assert volume["metadata"]["labels"] == labels
    assert volume["metadata"]["annotations"] == {
        "pv.kubernetes.io/provisioned-by": PROVISIONER,
        "efs-stunnel.gnuthought.com/file-system-id": "fs-1",
    }
    spec = volume["spec"]
    assert spec["nfs"] == {"server": "127.0.0.1", "path": "/"}
    assert spec["mountOptions"] == ["port=20490"]
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"
    assert spec["storageClassName"] == "efs-stunnel-system"
    reference = {key: spec["claimRef"][key] for key in ("namespace", "name", "uid")}
    assert reference == {
        "namespace": "default",
        "name": "efs-stunnel-fs-1",
        "uid": claim["metadata"]["uid"],
    }


async def test_each_root_volume_has_its_own_key(here: Installation) -> None:
    await here.follow(fs_1=20490, fs_2=20491)
    keys = {claim["spec"]["selector"]["matchLabels"]["root_key"] for claim in (await here.claims()).values()}
    assert len(keys) == 2


async def test_correct_objects_are_not_written_again(here: Installation) -> None:
    await here.follow(fs_1=20490)
    before = versions(await here.claims()), versions(await here.volumes())
    await here.follow(fs_1=20490)
    assert (versions(await here.claims()), versions(await here.volumes())) == before


async def test_objects_missing_after_a_crash_are_created(here: Installation, kube: AsyncClient) -> None:
    await here.follow(fs_1=20490)
    await kube.delete(PersistentVolume, "efs-stunnel-fs-1")
    await _forget_finalizers(kube, PersistentVolume, "efs-stunnel-fs-1")
    await here.follow(fs_1=20490)
    claim, volume = (await here.claims())["efs-stunnel-fs-1"], (await here.volumes())["efs-stunnel-fs-1"]
    assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]


@pytest.mark.parametrize("is_read_before", [False, True])
async def test_deleted_volume_that_watches_do_not_show_yet_gets_no_new_claim(
    is_read_before: bool, here: Installation, kube: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a claim that exists, it would be Bound and Terminating without end."""
    await here.follow(fs_1=20490)
    old = (await here.claims())["efs-stunnel-fs-1"]
    await kube.delete(PersistentVolumeClaim, "efs-stunnel-fs-1", namespace="default")
    await _forget_finalizers(kube, PersistentVolumeClaim, "efs-stunnel-fs-1")
    if is_read_before:
        get = kube.get

        async def read_and_delete(*given: Any) -> Any:
            found = await get(*given)
            await kube.delete(PersistentVolume, "efs-stunnel-fs-1")
            return found

        monkeypatch.setattr(kube, "get", read_and_delete)
        with pytest.raises(KubeConflict):
            await here.follow_late(fs_1=20490)
    else:
        await kube.delete(PersistentVolume, "efs-stunnel-fs-1")
        await here.follow_late(fs_1=20490)
    volume = (await here.volumes())["efs-stunnel-fs-1"]
    assert volume["metadata"]["deletionTimestamp"]
    assert volume["spec"]["claimRef"]["uid"] == old["metadata"]["uid"]


async def test_new_claim_is_bound_to_the_existing_volume(here: Installation, kube: AsyncClient) -> None:
    await here.follow(fs_1=20490)
    old = (await here.claims())["efs-stunnel-fs-1"]
    await kube.delete(PersistentVolumeClaim, "efs-stunnel-fs-1", namespace="default")
    await _forget_finalizers(kube, PersistentVolumeClaim, "efs-stunnel-fs-1")
    await here.follow(fs_1=20490)
    new, volume = (await here.claims())["efs-stunnel-fs-1"], (await here.volumes())["efs-stunnel-fs-1"]
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert volume["spec"]["claimRef"]["uid"] == new["metadata"]["uid"]
    assert volume["metadata"]["labels"] == new["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param({"spec": {"mountOptions": ["port=1"]}}, id="port"),
        pytest.param({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}, id="reclaim policy"),
        pytest.param({"metadata": {"labels": {"root_key": "guessed"}}}, id="key"),
        pytest.param({"spec": {"claimRef": {"uid": "another"}}}, id="claim"),
    ],
)
async def test_foreign_changes_are_repaired(
    here: Installation, kube: AsyncClient, patch: dict[str, Any]
) -> None:
    await here.follow(fs_1=20490)
    before = (await here.volumes())["efs-stunnel-fs-1"]
    await kube.patch(PersistentVolume, "efs-stunnel-fs-1", patch, patch_type=PatchType.MERGE)
    await here.follow(fs_1=20490)
    after = (await here.volumes())["efs-stunnel-fs-1"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    for field in ("mountOptions", "persistentVolumeReclaimPolicy"):
        assert after["spec"][field] == before["spec"][field]
    assert after["spec"]["claimRef"]["uid"] == before["spec"]["claimRef"]["uid"]


async def test_root_volume_follows_a_changed_port(here: Installation) -> None:
    await here.follow(fs_1=20490)
    await here.follow(fs_1=20495)
    assert (await here.volumes())["efs-stunnel-fs-1"]["spec"]["mountOptions"] == ["port=20495"]


async def test_only_the_root_of_the_deleted_file_system_is_removed(
    here: Installation, kube: AsyncClient
) -> None:
    await here.follow(fs_1=20490, fs_2=20491)
    await _create_claim(kube, "data", "efs")
    kept = versions(await here.volumes())["efs-stunnel-fs-2"]
    await here.follow(fs_2=20491)
    assert set(_living(await here.claims())) == {"efs-stunnel-fs-2", "data"}
    assert set(_living(await here.volumes())) == {"efs-stunnel-fs-2"}
    assert versions(await here.volumes())["efs-stunnel-fs-2"] == kept
    assert here.released == ["efs-stunnel-fs-1"]


async def test_root_volumes_of_another_installation_are_not_changed(
    here: Installation, kube: AsyncClient
) -> None:
    other = RootVolumes(
        kube, VolumeIndex(), namespace="kube-system", provisioner=PROVISIONER, release=here._release
    )
    fs = FileSystemId("fs-9")
    await other.follow(TunnelTargets(targets={fs: TunnelTarget(file_system_id=fs, port=20499)}))
    await here.follow(fs_1=20490)
    await here.follow()
    assert set(_living(await here.volumes())) == {"efs-stunnel-fs-9"}


async def test_failed_root_volume_does_not_delay_others(here: Installation, kube: AsyncClient) -> None:
    await _create_claim(kube, "efs-stunnel-fs-1", "somebody-s-own")
    with pytest.raises(KubeAlreadyExists):
        await here.follow(fs_1=20490, fs_2=20491)
    assert set(await here.volumes()) == {"efs-stunnel-fs-2"}


async def _create_claim(kube: AsyncClient, name: str, storage_class: str) -> None:
    await kube.create(
        PersistentVolumeClaim(
            metadata=ObjectMeta(name=name, namespace="default"),
            spec=PersistentVolumeClaimSpec(
                accessModes=["ReadWriteMany"],
                storageClassName=storage_class,
                resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
            ),
        )
    )


async def test_unwanted_roots_are_deleted_but_not_those_of_worker_pods(
    here: Installation, kube: AsyncClient
) -> None:
    await here.follow(fs_1=20490)
    pod = await kube.create(
        Pod(
            metadata=ObjectMeta(
                name="efs-init-fs-1-a", namespace="default", annotations={FILE_SYSTEM_ID: "fs-1"}
            ),
            spec=PodSpec(containers=[Container(name="worker", image="i")]),
        )
    )
    for one in root_objects(observe_pod(pod, since=0), FileSystemKind.EFS, "default"):
        await kube.create(one)
    here.roots.wanted = False
    await here.follow(fs_1=20490)
    assert here.released == ["efs-stunnel-fs-1"]
    for kind, found in (
        (PersistentVolumeClaim, await here.claims()),
        (PersistentVolume, await here.volumes()),
    ):
        deleted = {name for name, body in found.items() if body["metadata"].get("deletionTimestamp")}
        assert (found.keys() - deleted, deleted) == ({"efs-init-fs-1-a"}, {"efs-stunnel-fs-1"}), kind


async def _forget_finalizers(
    kube: AsyncClient, kind: type[PersistentVolume] | type[PersistentVolumeClaim], name: str
) -> None:
    """Remove finalizers, as the cluster's protection controllers do when nothing uses the object."""
    patch = {"metadata": {"finalizers": None}}
    if kind is PersistentVolumeClaim:
        await kube.patch(PersistentVolumeClaim, name, patch, namespace="default", patch_type=PatchType.MERGE)
    else:
        await kube.patch(PersistentVolume, name, patch, patch_type=PatchType.MERGE)


def _living(objects: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: body for name, body in objects.items() if "deletionTimestamp" not in body["metadata"]}
