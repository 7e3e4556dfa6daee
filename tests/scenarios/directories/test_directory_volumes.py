"""Directory volumes: the volume of a claim, its events, and the removal of its data."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from lightkube import ApiError
from lightkube.models.core_v1 import (
    Container,
    HostPathVolumeSource,
    NFSVolumeSource,
    PersistentVolumeClaimVolumeSource,
    PodSecurityContext,
    PodSpec,
    TypedObjectReference,
    VolumeMount,
)
from lightkube.models.core_v1 import Volume as PodVolume
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod
from lightkube.resources.storage_v1 import StorageClass
from tests.scenarios import directory_steps, steps
from tests.scenarios.directory_steps import PROVISIONER, Claims
from tests.scenarios.nfs_users import NfsUser
from tests.scenarios.steps import Cluster

from kube_efs.model.tunnel_volumes import REJECTED
from kube_efs.model.volumes import FINALIZER, NfsSource, Volume, VolumePhase

pytestmark = pytest.mark.asyncio(loop_scope="session")

UID = 1234
BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
OPTIONS = ("nfsvers=4.1", "hard", "rsize=65536")


@dataclass(frozen=True, slots=True)
class Served:
    """Claims that were served concurrently, with the volume and class of each."""

    claims: Claims
    volumes: Mapping[str, Volume]
    classes: Mapping[str, str]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(cluster: Cluster) -> Served:
    client, claims = cluster.client, await Claims.of(cluster)
    classes = {
        "plain": await directory_steps.new_class(client),
        "everybodys": await directory_steps.new_class(client, gidAllocate="false"),
        "options": await directory_steps.new_class(client, mount_options=OPTIONS),
        "tls": await directory_steps.new_class(client, tls="true"),
        "kept": await directory_steps.new_class(client, reclaim_policy="Retain"),
        "l" * 253: await directory_steps.new_class(client),
        "unknown-parameters": await directory_steps.new_class(
            client, gidallocate="F", gidMin="none", archiveOnDelete="x"
        ),
    }
    await asyncio.gather(*(claims.create(name, claim) for claim, name in classes.items()))
    volumes = {claim: await claims.bound(claim) for claim in classes}
    return Served(claims, volumes, classes)


async def test_volume_of_a_claim_has_exactly_the_documented_fields(cluster: Cluster, served: Served) -> None:
    claim = await served.claims.get("plain")
    assert claim.metadata
    name = f"pvc-{claim.metadata.uid}"

    body = (await cluster.client.get(PersistentVolume, name)).to_dict()

    gid = body["metadata"]["annotations"].pop("pv.beta.kubernetes.io/gid")
    assert int(gid) >= 2000
    assert str(int(gid)) == gid
    assert body["metadata"]["annotations"] == {"pv.kubernetes.io/provisioned-by": PROVISIONER}
    assert "labels" not in body["metadata"]
    assert sorted(body["metadata"]["finalizers"]) == [FINALIZER, "kubernetes.io/pv-protection"]
    spec = body["spec"]
    reference = spec.pop("claimRef")
    assert int(reference.pop("resourceVersion")) > 0
    assert reference == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": served.claims.namespace,
        "name": "plain",
        "uid": claim.metadata.uid,
    }
    assert spec == {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Gi"},
        "mountOptions": ["vers=4.1"],
        "nfs": {
            "server": directory_steps.server(cluster, directory_steps.file_system(cluster)),
            "path": f"/plain-{name}",
        },
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": served.classes["plain"],
        "volumeMode": "Filesystem",
    }


async def test_directory_belongs_to_the_group_of_the_volume(cluster: Cluster, served: Served) -> None:
    volume = served.volumes["plain"]
    found = directory_steps.folder(cluster, volume).stat()
    assert oct(found.st_mode & 0o7777) == "0o2771"
    assert (found.st_uid, found.st_gid) == (0, volume.gid)


async def test_served_claim_gets_events(cluster: Cluster, served: Served) -> None:
    client, namespace, volume = cluster.client, served.claims.namespace, served.volumes["plain"]
    place = f"{directory_steps.file_system(cluster)}:/plain-{volume.name}"
    told = await steps.messages(client, namespace, "plain", "Provisioning")
    assert set(told) == {f"Creating {place} for claim {namespace}/plain"}
    assert await steps.eventually(
        lambda: steps.messages(client, namespace, "plain", "ProvisioningSucceeded"), what="success is shown"
    ) == [f"Volume {volume.name} is ready at {place}"]


async def test_every_user_can_write_to_a_volume_without_a_group(cluster: Cluster, served: Served) -> None:
    volume = served.volumes["everybodys"]
    found = directory_steps.folder(cluster, volume).stat()
    assert oct(found.st_mode & 0o7777) == "0o777"
    assert (found.st_uid, found.st_gid) == (0, 0)
    assert volume.gid is None


async def test_mount_options_of_the_class_replace_the_default(served: Served) -> None:
    assert served.volumes["options"].mount_options == OPTIONS


async def test_long_claim_name_is_truncated_to_the_limit_of_file_systems(
    cluster: Cluster, served: Served
) -> None:
    volume = served.volumes["l" * 253]
    found = directory_steps.folder(cluster, volume)
    assert found.is_dir()
    assert len(found.name) == 255
    assert found.name.startswith("l" * 200)
    assert found.name.endswith(f"-{volume.name}")


@pytest.mark.parametrize("name", ["plain", "tls"])
async def test_only_processes_with_the_group_can_write_through_the_server(
    cluster: Cluster, served: Served, name: str
) -> None:
    volume = served.volumes[name]
    assert volume.nfs
    assert volume.gid
    port = await steps.port_of(cluster, directory_steps.file_system(cluster))
    await steps.tunnel_up(cluster, directory_steps.file_system(cluster))
    path, found = volume.nfs.path, directory_steps.folder(cluster, volume)

    assert await NfsUser(uid=UID, gid=volume.gid).may_create(port, f"{path}/own")
    assert await NfsUser(uid=UID, gid=UID, groups=(volume.gid,)).may_create(port, f"{path}/further")
    assert not await NfsUser(uid=UID, gid=UID).may_create(port, f"{path}/stranger")
    assert not await NfsUser(uid=UID, gid=UID, groups=(volume.gid + 1,)).may_create(port, f"{path}/other")

    assert sorted(file.name for file in found.iterdir()) == ["further", "own"]
    assert {(file.stat().st_uid, file.stat().st_gid) for file in found.iterdir()} == {(UID, volume.gid)}


async def test_pods_get_the_group_only_through_the_claim(cluster: Cluster, served: Served) -> None:
    volume = served.volumes["plain"]
    assert volume.nfs
    beside = NFSVolumeSource(server=volume.nfs.server, path=volume.nfs.path)
    claimed = PersistentVolumeClaimVolumeSource(claimName="plain")

    await asyncio.gather(
        _runs(cluster, served, PodVolume(name="data", persistentVolumeClaim=claimed), "echo x > /data/pod"),
        _runs(cluster, served, PodVolume(name="data", nfs=beside), "! echo x > /data/beside"),
    )

    found = directory_steps.folder(cluster, volume)
    assert (found / "pod").stat().st_gid == volume.gid
    assert not (found / "beside").exists()


async def _runs(cluster: Cluster, served: Served, source: PodVolume, script: str) -> None:
    """Run a script in a pod of an unprivileged user; it must succeed."""
    namespace, name = served.claims.namespace, "by-claim" if source.persistentVolumeClaim else "beside"
    pod = Pod(
        metadata=ObjectMeta(namespace=namespace, name=name),
        spec=PodSpec(
            restartPolicy="Never",
            securityContext=PodSecurityContext(runAsUser=UID, runAsGroup=UID),
            containers=[
                Container(
                    name="main",
                    image="any",
                    command=["sh", "-c", script],
                    volumeMounts=[VolumeMount(name="data", mountPath="/data")],
                )
            ],
            volumes=[source],
        ),
    )

    async def create() -> bool:
        try:
            await cluster.client.create(pod)
        except ApiError as error:
            if error.status.code == 403:  # the namespace has no service account yet
                return False
            raise
        return True

    async def ended() -> str | None:
        status = (await cluster.client.get(Pod, name, namespace=namespace)).status
        return status.phase if status and status.phase in {"Succeeded", "Failed"} else None

    await steps.eventually(create, what=f"pod {name} can be made")
    assert await steps.eventually(ended, what=f"pod {name} ends") == "Succeeded"


async def test_tls_volume_uses_the_tunnel(cluster: Cluster, served: Served) -> None:
    system, volume = directory_steps.file_system(cluster), served.volumes["tls"]
    port = await steps.port_of(cluster, system)
    assert volume.nfs == NfsSource(server="127.0.0.1", path=f"/tls-{volume.name}")
    assert volume.mount_options == (f"port={port}", "vers=4.1")
    assert volume.file_system_id == system


async def test_beta_annotation_selects_the_class(cluster: Cluster) -> None:
    claims, name = await Claims.of(cluster), await directory_steps.new_class(cluster.client)
    claim = claims.body("old", "")
    assert claim.metadata
    assert claim.spec
    claim.metadata.annotations = {BETA_CLASS: name}
    claim.spec.storageClassName = None
    await cluster.client.create(claim)

    volume = await claims.bound("old")

    assert volume.storage_class == name
    await claims.removed("old")


# --- what is not served

RANGE = "a whole number from 2000 to 2147483647"
MALFORMED: Mapping[str, tuple[dict[str, str], str]] = {
    "gidAllocate empty": ({"gidAllocate": ""}, "gidAllocate: is neither true nor false"),
    "gidAllocate is not a boolean": ({"gidAllocate": "yes"}, "gidAllocate: 'yes' is neither true nor false"),
    "gidAllocate in mixed case": ({"gidAllocate": "tRUE"}, "gidAllocate: 'tRUE' is neither true nor false"),
    "gidMin is not a number": ({"gidMin": "many"}, "gidMin: 'many' is not a valid group ID"),
    "gidMin empty": ({"gidMin": ""}, "gidMin: is not a valid group ID"),
    "gidMin with a blank": ({"gidMin": " 2000"}, "gidMin: ' 2000' is not a valid group ID"),
    "gidMin with an underscore": ({"gidMin": "2_000"}, "gidMin: '2_000' is not a valid group ID"),
    "gidMin in digits that are not ASCII": ({"gidMin": "٢٠٠٠"}, "gidMin: '٢٠٠٠' is not a valid group ID"),
    "gidMin with a fraction": ({"gidMin": "2000.0"}, "gidMin: '2000.0' is not a valid group ID"),
    "gidMin hexadecimal": ({"gidMin": "0x800"}, "gidMin: '0x800' is not a valid group ID"),
    "gidMin negative": ({"gidMin": "-2000"}, "gidMin: '-2000' is not a valid group ID"),
    "gidMin below the minimum": ({"gidMin": "1999"}, "gidMin: '1999' is not a valid group ID; "),
    "gidMin above the maximum": ({"gidMin": "2147483648"}, "gidMin: '2147483648' is not a valid group ID"),
    "gidMax is not a number": ({"gidMax": "many"}, "gidMax: 'many' is not a valid group ID"),
    "gidMax below the minimum": ({"gidMax": "1999"}, "gidMax: '1999' is not a valid group ID"),
    "gidMax above the maximum": ({"gidMax": "2147483648"}, "gidMax: '2147483648' is not a valid group ID"),
    "gidMax below gidMin": ({"gidMin": "3000", "gidMax": "2999"}, "gidMax: '2999' is below gidMin, '3000'"),
    "repeated in another case": ({"gidMin": "2000", "gidmin": "3000"}, "is the same parameter as"),
    "tls is not a boolean": ({"tls": "on"}, "tls: 'on' is neither true nor false"),
}


@pytest.mark.parametrize(("parameters", "text"), MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_parameter_is_reported_and_the_claim_is_not_changed(
    cluster: Cluster, parameters: dict[str, str], text: str
) -> None:
    claims, name = await Claims.of(cluster), await directory_steps.new_class(cluster.client, **parameters)

    await claims.create(name, "data")

    told = await claims.warning("data")
    assert f"StorageClass {name} parameters" in told
    assert text in told
    assert "create the class again with" in told
    assert not any("efs" in key for key in await steps.annotations(cluster.client, claims.namespace, "data"))
    assert not await claims.volumes()


def _selects(claim: PersistentVolumeClaim) -> None:
    assert claim.spec
    claim.spec.selector = LabelSelector(matchLabels={"tier": "gold"})


def _selects_nothing(claim: PersistentVolumeClaim) -> None:
    assert claim.spec
    claim.spec.selector = LabelSelector()


def _is_block(claim: PersistentVolumeClaim) -> None:
    assert claim.spec
    claim.spec.volumeMode = "Block"


def _is_a_copy(claim: PersistentVolumeClaim) -> None:
    assert claim.spec
    # kube-apiserver drops kinds that it does not know from the older field, dataSource.
    claim.spec.dataSourceRef = TypedObjectReference(apiGroup="example.com", kind="Database", name="other")


UNSERVABLE = {
    "selector": (_selects, "spec.selector: is not supported"),
    "empty selector": (_selects_nothing, "spec.selector: is not supported"),
    "block device": (_is_block, "spec.volumeMode: 'Block' cannot be served by NFS"),
    "data source": (_is_a_copy, "spec.dataSource: 'Database other' cannot be copied"),
}


@pytest.mark.parametrize(("change", "text"), UNSERVABLE.values(), ids=UNSERVABLE.keys())
async def test_unsupported_claim_is_reported(cluster: Cluster, change: Any, text: str) -> None:
    claims, name = await Claims.of(cluster), await directory_steps.new_class(cluster.client)
    claim = claims.body("data", name)
    change(claim)

    await cluster.client.create(claim)

    assert text in await claims.warning("data")
    assert REJECTED not in await steps.annotations(cluster.client, claims.namespace, "data")
    assert not await claims.volumes()


async def test_claim_assigned_to_kube_efs_waits_for_its_missing_class(cluster: Cluster) -> None:
    claims, name = await Claims.of(cluster), f"late-{(await steps.new_namespace(cluster.client))}"
    claim = claims.body("data", name)
    assert claim.metadata
    claim.metadata.annotations = {STORAGE_PROVISIONER: PROVISIONER}
    await cluster.client.create(claim)
    assert f"spec.storageClassName: '{name}' does not exist" in await claims.warning("data")

    await cluster.client.create(StorageClass(metadata=ObjectMeta(name=name), provisioner=PROVISIONER))

    await claims.removed("data")


@pytest.mark.parametrize(
    "key", [STORAGE_PROVISIONER, STORAGE_PROVISIONER.replace("volume", "volume.beta", 1)]
)
async def test_claim_assigned_to_kube_efs_with_a_foreign_class_gets_a_warning(
    cluster: Cluster, key: str
) -> None:
    claims = await Claims.of(cluster)
    # Kubernetes leaves the annotation of such a claim alone until there is a pod.
    name = await directory_steps.new_class(
        cluster.client, provisioner="example.com/other", binding_mode="WaitForFirstConsumer"
    )
    claim = claims.body("data", name)
    assert claim.metadata
    claim.metadata.annotations = {key: PROVISIONER}

    await cluster.client.create(claim)

    told = await claims.warning("data")
    assert f"StorageClass {name} provisioner: 'example.com/other' is not {PROVISIONER}" in told
    assert not await claims.volumes()


# --- what goes with a volume, and what does not


async def test_directory_is_removed_with_its_claim(cluster: Cluster, served: Served) -> None:
    root = cluster.efs.folder(directory_steps.file_system(cluster))
    found = directory_steps.folder(cluster, served.volumes["options"])
    (found / "deep" / "er").mkdir(parents=True)
    (found / "deep" / "er" / "file").write_text("x")
    (found / "out").symlink_to(root)

    await served.claims.removed("options")

    await steps.trash_is_empty(root)


async def test_tls_volume_is_removed_with_its_claim(served: Served) -> None:
    await served.claims.removed("tls")


async def test_retain_keeps_the_volume_and_the_directory(cluster: Cluster, served: Served) -> None:
    volume = served.volumes["kept"]
    await served.claims.delete("kept")
    await directory_steps.reaches_phase(cluster, volume.name, VolumePhase.RELEASED)

    await cluster.client.delete(PersistentVolume, volume.name)

    await steps.gone(cluster.client, volume.name)
    assert directory_steps.folder(cluster, volume).is_dir()


async def test_parameters_without_effect_are_logged_and_harmless(cluster: Cluster, served: Served) -> None:
    assert served.volumes["unknown-parameters"].gid is None
    warned = [
        entry["reason"]
        for entry in await directory_steps.log_lines(cluster.controller, "storage-class-warning")
        if entry["storage_class"] == served.classes["unknown-parameters"]
    ]
    assert len(warned) == 2
    assert "gidMin: 'none' is not a valid group ID, but has no effect" in warned[1]
    assert "archiveOnDelete: 'x' has no effect, the parameter is not known" in warned[0]
    await served.claims.removed("unknown-parameters")


async def test_volume_of_a_deleted_class_is_removed_and_its_gid_is_reused(cluster: Cluster) -> None:
    claims, one_gid = await Claims.of(cluster), {"gidMin": "7000", "gidMax": "7000"}
    first = await directory_steps.new_class(cluster.client, **one_gid)
    await claims.provisioned(first, "first")
    await cluster.client.delete(StorageClass, first)

    await claims.removed("first")

    second = await directory_steps.new_class(cluster.client, **one_gid)
    assert (await claims.provisioned(second, "second")).gid == 7000


async def test_volume_deleted_while_bound_is_kept_until_its_claim_is_deleted(cluster: Cluster) -> None:
    claims, name = await Claims.of(cluster), await directory_steps.new_class(cluster.client)
    volume = await claims.provisioned(name, "data")
    file = directory_steps.folder(cluster, volume) / "file"
    file.write_text("kept")

    await cluster.client.delete(PersistentVolume, volume.name)
    await directory_steps.is_deleting(cluster, volume.name)
    # A claim served afterwards shows that the deletion has been seen and passed over.
    await claims.provisioned(name, "later")
    assert FINALIZER in (await directory_steps.is_deleting(cluster, volume.name)).finalizers
    assert file.read_text() == "kept"

    await claims.delete("data")

    await steps.gone(cluster.client, volume.name)
    assert not file.parent.exists()


# --- volumes that people have written


def _nfs(cluster: Cluster, path: str, *, server: str | None = None) -> NFSVolumeSource:
    own = directory_steps.server(cluster, directory_steps.file_system(cluster))
    return NFSVolumeSource(server=server or own, path=path)


@pytest.mark.parametrize("path", ["/by-hand", "/pv/by-hand"], ids=["plain", "nested"])
async def test_directory_of_any_name_below_the_base_is_removed_with_its_volume(
    cluster: Cluster, path: str
) -> None:
    found = cluster.efs.folder(directory_steps.file_system(cluster)) / path.lstrip("/")
    found.mkdir(parents=True)
    name = f"by-hand-{len(path)}"

    await cluster.client.create(directory_steps.released_volume(name, _nfs(cluster, path)))

    await steps.gone(cluster.client, name)
    assert not found.exists()
    await directory_steps.has_logged(cluster.controller, "directory-name-unexpected", volume=name)


FORGED = {
    "base itself": "/",
    "dots": "/victim/../victim",
    "repeated slashes": "/victim//inner",
    "trailing slash": "/victim/",
}


@pytest.mark.parametrize("path", FORGED.values(), ids=FORGED.keys())
async def test_removal_of_an_ambiguous_path_is_refused(cluster: Cluster, path: str) -> None:
    root = cluster.efs.folder(directory_steps.file_system(cluster))
    (root / "victim" / "inner").mkdir(parents=True, exist_ok=True)
    name = f"forged-{list(FORGED.values()).index(path)}"

    await cluster.client.create(directory_steps.released_volume(name, _nfs(cluster, path)))

    told = await steps.refusal(cluster, name)
    assert f"spec.nfs.path: '{path}' is not a plain path below the base" in told
    assert (root / "victim" / "inner").is_dir()
    await _check_manual_deletion(cluster, name)
    assert (root / "victim" / "inner").is_dir()


async def test_refused_removal_ends_when_the_volume_is_set_to_retain(
    cluster: Cluster, tmp_path: Path
) -> None:
    link = cluster.efs.folder(directory_steps.file_system(cluster)) / "let-go"
    link.symlink_to(tmp_path)
    (tmp_path / "inner").mkdir()
    volume = directory_steps.released_volume("let-go", _nfs(cluster, "/let-go/inner"))
    await cluster.client.create(volume)
    assert "or set the reclaim policy of this volume to Retain" in await steps.refusal(cluster, "let-go")
    retained = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
    await cluster.client.patch(PersistentVolume, "let-go", retained)
    await steps.gone(cluster.client, "let-go")
    assert (tmp_path / "inner").is_dir()


async def test_removal_behind_a_link_is_refused_until_the_link_is_deleted(
    cluster: Cluster, tmp_path: Path
) -> None:
    link = cluster.efs.folder(directory_steps.file_system(cluster)) / "link"
    (tmp_path / "inner").mkdir()
    link.symlink_to(tmp_path)

    await cluster.client.create(directory_steps.released_volume("linked", _nfs(cluster, "/link/inner")))

    assert "is or is below a link or file" in await steps.refusal(cluster, "linked")
    link.unlink()
    await steps.gone(cluster.client, "linked")
    assert (tmp_path / "inner").is_dir()


@pytest.mark.parametrize("place", ["another file system", "another server", "loopback without a tunnel"])
async def test_volume_of_another_server_is_reported_and_released(cluster: Cluster, place: str) -> None:
    root = cluster.efs.folder(directory_steps.file_system(cluster))
    (root / "foreign").mkdir(exist_ok=True)
    server = {
        "another file system": directory_steps.server(cluster, cluster.file_system_ids[1]),
        "another server": "files.example.com",
        "loopback without a tunnel": "127.0.0.1",
    }[place]
    name = place.replace(" ", "-")

    await cluster.client.create(
        directory_steps.released_volume(name, _nfs(cluster, "/foreign", server=server))
    )

    told = await steps.refusal(cluster, name)
    assert f"spec.nfs.server: '{server}' is not a server of this provisioner's volumes" in told
    await _check_manual_deletion(cluster, name)
    assert (root / "foreign").is_dir()


async def test_volume_without_nfs_is_reported_and_released(cluster: Cluster) -> None:
    volume = directory_steps.released_volume("no-nfs", None)
    assert volume.spec
    volume.spec.hostPath = HostPathVolumeSource(path="/nowhere")

    await cluster.client.create(volume)

    assert "volume: 'no-nfs' has no spec.nfs" in await steps.refusal(cluster, "no-nfs")
    await _check_manual_deletion(cluster, "no-nfs")
    assert cluster.controller.running


async def _check_manual_deletion(cluster: Cluster, name: str) -> None:
    """Check that the volume exists, and that a manual deletion removes it."""
    assert await directory_steps.get_volume(cluster, name)
    await cluster.client.delete(PersistentVolume, name)
    await steps.gone(cluster.client, name)
