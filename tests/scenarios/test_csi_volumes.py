"""Claims of the CSI driver, served without sidecars: the created and removed objects, also in AWS."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from lightkube.models.core_v1 import (
    Container,
    CSIPersistentVolumeSource,
    ObjectReference,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    PodSpec,
)
from lightkube.models.core_v1 import Volume as PodVolume
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret
from lightkube.resources.storage_v1 import StorageClass
from lightkube.types import PatchType
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.csi_steps import DRIVER, Aws
from tests.scenarios.directory_steps import Claims
from tests.scenarios.nfs_users import NfsUser
from tests.scenarios.steps import Cluster

from fake_efs.policy import managed_policy
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.volumes import FINALIZER, PROVISIONED_BY, Volume, VolumePhase
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs_lab.node import IMAGE

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROLE = "arn:aws:iam::123456789012:role/storage"
CALLS = 'kube_efs_aws_calls_total{operation="'


@pytest.fixture(scope="module")
def driver_policy() -> str:
    """What most users of EKS attach, and what file systems of other accounts need besides."""
    policy = json.loads(managed_policy())
    policy["Statement"].append({"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"})
    return json.dumps(policy)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aws(cluster: Cluster) -> AsyncIterator[Aws]:
    async with Aws.of(cluster) as aws:
        yield aws


async def _access_point(aws: Aws, volume: Volume) -> Mapping[str, Any]:
    """The access point of the volume, as AWS describes it."""
    handle = csi_steps.handle_of(volume)
    found = await aws.described(handle.file_system_id)
    return next(one for one in found if one["AccessPointId"] == handle.access_point_id)


# --- the example of the AWS driver's users


async def test_claim_of_the_older_example_gets_the_volume_of_csi_provisioner(
    cluster: Cluster, aws: Aws
) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    await cluster.client.create(csi_steps.seed_class(system))
    await cluster.client.create(csi_steps.seed_claim(claims.namespace))

    volume = await claims.bound("efs-claim-1")

    claim = await claims.get("efs-claim-1")
    assert claim.metadata
    name = f"pvc-{claim.metadata.uid}"
    (point,) = await aws.described(system)
    body = await csi_steps.raw_volume(cluster, volume.name)
    metadata, spec = body["metadata"], body["spec"]
    assert (metadata["name"], metadata.get("labels")) == (name, None)
    assert metadata["annotations"] == {
        PROVISIONED_BY: DRIVER,
        "volume.kubernetes.io/provisioner-deletion-secret-name": "",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
    }
    assert sorted(metadata["finalizers"]) == [FINALIZER, "kubernetes.io/pv-protection"]
    reference = spec.pop("claimRef")
    assert (reference["namespace"], reference["name"]) == (claims.namespace, "efs-claim-1")
    assert spec == {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "5Gi"},
        "csi": {"driver": DRIVER, "volumeHandle": f"efs:{system}::{point['AccessPointId']}"},
        "mountOptions": ["tls"],
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "efs-sc-1",
        "volumeMode": "Filesystem",
    }
    assert point["PosixUser"] == {"Uid": 1000, "Gid": 1000}
    assert point["RootDirectory"] == {
        "Path": f"/dynamic_provisioning/{name}",
        "CreationInfo": {"OwnerUid": 1000, "OwnerGid": 1000, "Permissions": "700"},
    }
    assert point["ClientToken"] == name
    assert {tag["Key"]: tag["Value"] for tag in point["Tags"]} == {"efs.csi.aws.com/cluster": "true"}
    told = await csi_steps.events(cluster, claims, "efs-claim-1", "ProvisioningSucceeded")
    assert told == [f"Volume {name} is ready at efs:{system}::{point['AccessPointId']}"]

    await csi_steps.removed(cluster, claims, "efs-claim-1")
    assert await aws.described(system) == []
    await cluster.client.delete(StorageClass, "efs-sc-1")


async def test_managed_policy_allows_every_call(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await claims.provisioned(name, "managed")
    await csi_steps.removed(cluster, claims, "managed")
    assert await aws.described(system) == []
    samples = await steps.samples(cluster.controller, "kube_efs_aws_calls_total")
    assert [one for one in samples if "AccessDenied" in one or "UnauthorizedOperation" in one] == []
    assert [one for one in samples if 'operation="DeleteAccessPoint",outcome="succeeded"' in one]


@pytest.mark.parametrize(
    "settings",
    [{"KUBE_EFS_VOLUME_TAGS": "true"}, {"KUBE_EFS_ACCESS_POINT_TAGS": "team:web"}],
    ids=["of the volume", "of the driver"],
)
async def test_managed_policy_denies_further_tags(
    cluster: Cluster, aws: Aws, settings: dict[str, str]
) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    async with csi_steps.controller_with(cluster, **settings):
        await claims.create(name, "tagged")
        await claims.warning("tagged", "CreateAccessPoint")
    await claims.bound("tagged")
    await csi_steps.removed(cluster, claims, "tagged")


async def test_retain_keeps_volume_and_access_point(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(
        cluster.client, reclaim_policy="Retain", parameters={"fileSystemId": system}
    )
    volume = await claims.provisioned(name, "kept")

    await claims.delete("kept")
    await directory_steps.reaches_phase(cluster, volume.name, VolumePhase.RELEASED)
    await cluster.client.delete(PersistentVolume, volume.name)

    await steps.gone(cluster.client, volume.name)
    assert await aws.ids(system) == {csi_steps.handle_of(volume).access_point_id}


async def test_claims_get_the_retained_volumes_that_fit_and_no_new_ones(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(
        cluster.client, reclaim_policy="Retain", parameters={"fileSystemId": system}
    )
    retained = [await claims.provisioned(name, f"books-{number}") for number in range(6)]
    access_points = await aws.ids(system)
    for number, volume in enumerate(retained):
        await claims.delete(f"books-{number}")
        await directory_steps.reaches_phase(cluster, volume.name, VolumePhase.RELEASED)
        unclaimed = {"spec": {"claimRef": None}}
        await cluster.client.patch(PersistentVolume, volume.name, unclaimed, patch_type=PatchType.MERGE)
        await directory_steps.reaches_phase(cluster, volume.name, VolumePhase.AVAILABLE)

    await claims.create(name, *(f"books-{number}" for number in range(6)))
    bound = {(await claims.bound(f"books-{number}")).name for number in range(6)}

    assert bound == {one.name for one in retained}
    # The controller has seen those before this one.
    other = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": await aws.file_system()})
    await claims.provisioned(other, "new")
    assert await aws.ids(system) == access_points


async def test_each_volume_gets_its_own_id_from_the_range(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(
        cluster.client,
        parameters={"fileSystemId": system, "gidRangeStart": "7000", "gidRangeEnd": "7001"},
    )
    await claims.create(name, "one", "two")
    await claims.all_bound(2)
    users = [one["PosixUser"] for one in await aws.described(system)]
    assert sorted((user["Uid"], user["Gid"]) for user in users) == [(7000, 7000), (7001, 7001)]

    await claims.create(name, "three")

    told = await claims.warning("three", "7000-7001")
    assert "gidRangeStart-gidRangeEnd: '7000-7001' has no free ID; delete a volume" in told
    await claims.delete("one")
    await claims.bound("three")


async def test_claim_that_waits_for_its_pod_is_served_when_the_pod_exists(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(
        cluster.client, binding_mode="WaitForFirstConsumer", parameters={"fileSystemId": system}
    )
    prompt = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await claims.create(name, "later")
    # A claim that is served afterwards shows that the first one was seen and passed over.
    await claims.provisioned(prompt, "now")
    assert len(await claims.volumes()) == 1

    source = PersistentVolumeClaimVolumeSource(claimName="later")
    pod = Pod(
        metadata=ObjectMeta(namespace=claims.namespace, name="user"),
        spec=PodSpec(
            containers=[Container(name="user", image=IMAGE)],
            volumes=[PodVolume(name="data", persistentVolumeClaim=source)],
        ),
    )
    await cluster.client.create(pod)

    await claims.bound("later")
    await cluster.client.delete(Pod, "user", namespace=claims.namespace, grace_period=0)


# --- where the data lies


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        pytest.param({}, "/{pv}", id="not set"),
        pytest.param({"basePath": "a//b/"}, "/a/b/{pv}", id="base to be normalized"),
        pytest.param(
            {"subPathPattern": "${.PVC.namespace}/${.PVC.name}"},
            "/{namespace}/data-{uid}",
            id="pattern with its suffix",
        ),
        pytest.param(
            {"basePath": "/b", "subPathPattern": "x/${.PV.name}", "ensureUniqueDirectory": "false"},
            "/b/x/{pv}",
            id="pattern without a suffix",
        ),
        pytest.param(
            {"subPathPattern": "${.PVC.name}", "ensureUniqueDirectory": "no"},
            "/data-{uid}",
            id="invalid boolean for uniqueness",
        ),
    ],
)
async def test_directory_matches_its_class(
    cluster: Cluster, aws: Aws, parameters: dict[str, str], path: str
) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system, **parameters})

    volume = await claims.provisioned(name, "data")

    uid = volume.name.removeprefix("pvc-")
    expected = path.format(pv=volume.name, uid=uid, namespace=claims.namespace)
    assert (await _access_point(aws, volume))["RootDirectory"]["Path"] == expected


# --- owners, identities and directories that claims choose


@pytest.mark.parametrize("enforced", [True, False], ids=["with an identity", "without an identity"])
async def test_class_decides_whether_users_keep_their_own_identity(
    cluster: Cluster, aws: Aws, enforced: bool
) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    parameters = {"fileSystemId": system, "directoryPerms": "777", "uid": "4321", "gid": "4321"}
    posix_user = {} if enforced else {"posixUser": "none"}
    name = await csi_steps.new_class(cluster.client, parameters=parameters | posix_user)
    volume = await claims.provisioned(name, "data")
    point = await _access_point(aws, volume)
    assert point.get("PosixUser") == ({"Uid": 4321, "Gid": 4321} if enforced else None)

    (target, *_) = await cluster.efs.mount_targets(system)
    spec = TunnelSpec(
        file_system_id=system,
        address=target.address,
        access_point_id=csi_steps.handle_of(volume).access_point_id,
    )
    holder = Holder(f"test-{volume.name}")
    async with connect_tunnels(cluster.tunnel_socket) as agent:
        port = await agent.ensure(spec, holder)
        try:
            for uid in (1234, 5678):
                assert await NfsUser(uid=uid, gid=uid).may_create(port, f"file-{uid}")
            if not enforced:
                await NfsUser(uid=0, gid=0).change_owner(port, "file-1234", 9999)
        finally:
            await agent.release(holder)

    folder = cluster.efs.folder(system) / point["RootDirectory"]["Path"].lstrip("/")
    assert (folder.stat().st_uid, folder.stat().st_gid) == (4321, 4321)
    owners = {file.name: file.stat().st_uid for file in folder.iterdir()}
    assert owners == {"file-1234": 4321 if enforced else 9999, "file-5678": 4321 if enforced else 5678}
    await csi_steps.removed(cluster, claims, "data")


CHOICES = {"allowedUids": "1000-1999", "allowedGids": "0,3000", "allowedDirectoryPerms": "700,750"}
CHOSEN = {"uid": "1001", "gid": "3000", "directoryPerms": "750"}


async def _claim_with(
    cluster: Cluster, claims: Claims, name: str, storage_class: str, **annotations: str
) -> None:
    body = claims.body(name, storage_class)
    assert body.metadata
    body.metadata.labels = {"app": "shop"}
    body.metadata.annotations = {f"{DRIVER}/{key}": text for key, text in annotations.items()}
    await cluster.client.create(body)


async def test_claim_chooses_owner_mode_and_directory_within_the_limits_of_its_class(
    cluster: Cluster, aws: Aws
) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    pattern = {"subPathPattern": "${.PVC.namespace}/${.PVC.labels.app}", "ensureUniqueDirectory": "false"}
    name = await csi_steps.new_class(
        cluster.client, parameters={"fileSystemId": system, **CHOICES, **pattern}
    )
    await _claim_with(cluster, claims, "data", name, **CHOSEN)
    point = await _access_point(aws, await claims.bound("data"))
    assert point["PosixUser"] == {"Uid": 1001, "Gid": 3000}
    assert point["RootDirectory"] == {
        "Path": f"/{claims.namespace}/shop",
        "CreationInfo": {"OwnerUid": 1001, "OwnerGid": 3000, "Permissions": "750"},
    }


async def test_choice_that_the_class_does_not_allow_is_refused_until_it_is_removed(
    cluster: Cluster, aws: Aws
) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system, **CHOICES})
    without = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await _claim_with(cluster, claims, "root", name, uid="0")
    await _claim_with(cluster, claims, "any", without, uid="1001")

    field = f"metadata.annotations[{DRIVER}/uid]"
    assert f"{field}: '0' is not allowed by the class; the class allows 1000-1999" in await claims.warning(
        "root", field
    )
    assert f"{field}: '1001' is not allowed by the class, which has no allowedUids" in await claims.warning(
        "any", field
    )
    assert await aws.described(system) == []

    removed = {"metadata": {"annotations": {f"{DRIVER}/uid": None}}}
    await cluster.client.patch(
        PersistentVolumeClaim, "any", removed, namespace=claims.namespace, patch_type=PatchType.MERGE
    )
    await claims.bound("any")


async def test_directory_volume_has_no_access_point_and_is_removed_with_its_claim(
    cluster: Cluster, aws: Aws
) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    before = await aws.ids(system)
    name = await csi_steps.new_class(
        cluster.client,
        parameters={
            "provisioningMode": "efs-dir",
            "fileSystemId": system,
            "directoryPerms": "0750",
            "basePath": "/plain",
            "gidRangeStart": "8000",
            "gidRangeEnd": "8001",
        },
    )
    await claims.create(name, "one", "two")
    volumes = await claims.all_bound(2)

    assert await aws.ids(system) == before
    folders = [cluster.efs.folder(system) / "plain" / volume.name for volume in volumes]
    assert sorted(volume.csi.handle for volume in volumes if volume.csi) == sorted(
        f"efs:{system}:/plain/./{volume.name}" for volume in volumes
    )
    assert {folder.stat().st_mode & 0o7777 for folder in folders} == {0o750}
    owners = sorted((folder.stat().st_uid, folder.stat().st_gid) for folder in folders)
    assert owners == [(8000, 8000), (8001, 8001)]

    (folders[0] / "file").write_text("x")
    await claims.delete("one", "two")
    await claims.no_volumes()
    assert not any(folder.exists() for folder in folders)


async def test_full_file_system_is_followed_by_the_next_of_its_class(cluster: Cluster, aws: Aws) -> None:
    claims, pool = await Claims.of(cluster), [await aws.file_system(), await aws.file_system()]
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemIds": ", ".join(pool)})
    async with csi_steps.controller_with(cluster, KUBE_EFS_ACCESS_POINT_QUOTA="2"):
        volumes = [await claims.provisioned(name, f"data-{number}") for number in range(4)]
        systems = [csi_steps.handle_of(volume).file_system_id for volume in volumes]
        assert systems == [pool[0], pool[0], pool[1], pool[1]]

        await claims.create(name, "data-4")

        told = await claims.warning("data-4", "no room")
        assert f"'{pool[0]}, {pool[1]}' have no room for another access point (at most 2 each)" in told
        assert "provisioningMode: efs-dir" in told
        await claims.delete("data-0")
        assert csi_steps.handle_of(await claims.bound("data-4")).file_system_id == pool[0]


@pytest.mark.parametrize("zone", ["us-east-1b", None], ids=["one zone", "regional"])
async def test_one_zone_volume_has_node_affinity_if_the_class_enforces_it(
    cluster: Cluster, aws: Aws, zone: str | None
) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system(zone)
    name = await csi_steps.new_class(
        cluster.client, parameters={"fileSystemId": system, "enforceZoneAffinity": "true"}
    )
    volume = await claims.provisioned(name, "data")
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    body = await csi_steps.raw_volume(cluster, volume.name)
    assert body["spec"].get("nodeAffinity") == (affinity if zone else None)


# --- classes that cannot be served

MALFORMED: dict[str, tuple[dict[str, str], str]] = {
    "no mode": (
        {"provisioningMode": "-"},
        "provisioningMode: is missing; use one of efs-ap, efs-dir, s3files-ap, efs-fs",
    ),
    "another mode": (
        {"provisioningMode": "efs-db"},
        "provisioningMode: 'efs-db' is not supported; use one of efs-ap, efs-dir, s3files-ap, efs-fs",
    ),
    "no file system": ({"fileSystemId": "-"}, "fileSystemId: is missing; give one of fileSystemId"),
    "two sources": (
        {"fileSystemIdConfigRef": "a/b/c"},
        "parameters fileSystemId and fileSystemIdConfigRef: exclude each other; give one of them",
    ),
    "invalid file system ID": (
        {"fileSystemId": "fs-1,noresvport"},
        "fileSystemId: 'fs-1' is not a valid file system ID; use an id such as fs-0123456789abcdef0",
    ),
    "reference of two parts": (
        {"fileSystemId": "-", "fileSystemIdSecretRef": "a/b"},
        "fileSystemIdSecretRef: 'a/b' is not a valid reference; use NAMESPACE/NAME/KEY of a Secret",
    ),
    "no permissions": ({"directoryPerms": "-"}, "directoryPerms: is missing; use three or four octal digits"),
    "permissions that are not octal": (
        {"directoryPerms": "rwx"},
        "directoryPerms: 'rwx' is not a valid octal mode; use three",
    ),
    "user with blanks": ({"uid": " 7"}, "uid: ' 7' is"),
    "negative user": ({"uid": "-1"}, "uid: '-1' is"),
    "group above 32 bits": ({"gid": "4294967296"}, "gid: '4294967296' is"),
    "incomplete range": (
        {"gidRangeStart": "7"},
        "gidRangeEnd: is missing; give it together with gidRangeStart",
    ),
    "reversed range": (
        {"gidRangeStart": "7", "gidRangeEnd": "7"},
        "gidRangeEnd: '7' is not above gidRangeStart; use a number above 7",
    ),
    "range from 0": ({"gidRangeStart": "0", "gidRangeEnd": "7"}, "gidRangeStart: '0' is"),
    "base with a dollar sign": (
        {"basePath": "/a$b"},
        "basePath: '/a$b' is not accepted by EFS; begin no name",
    ),
    "unknown variable": (
        {"subPathPattern": "${.PVC.uid}"},
        "subPathPattern: '${.PVC.uid}' has an unknown variable; use ${.PVC.name}",
    ),
    "reuse that is not a boolean": ({"reuseAccessPoint": "yes"}, "reuseAccessPoint: 'yes' is"),
    "affinity that is not a boolean": (
        {"enforceZoneAffinity": ""},
        "enforceZoneAffinity: is not a boolean",
    ),
    "tagging that is not a boolean": ({"enableTagging": "No"}, "enableTagging: 'No' is"),
    "Secret without its namespace": (
        {"csi.storage.k8s.io/provisioner-secret-name": "x"},
        "parameters.csi.storage.k8s.io/provisioner-secret-name: needs the other parameter too; give both",
    ),
}
LATE: dict[str, tuple[dict[str, str], str]] = {
    "pattern that leads out of the base": (
        {"basePath": "/a", "subPathPattern": "../../b"},
        "leads out of basePath; leave out .. in subPathPattern",
    ),
    "too deep": ({"basePath": "/a/b/c/d"}, "is too deep; use at most 4 levels"),
    "too long": ({"basePath": f"/{'x' * 90}"}, "is too long; use at most 100 bytes"),
}


async def test_invalid_class_is_reported_before_any_aws_call(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    counted = [f'{CALLS}{operation}"' for operation in ("CreateAccessPoint", "DescribeAccessPoints")]
    before = [await steps.metric(cluster.controller, start) for start in counted]
    cases = list((MALFORMED | LATE).values())
    for number, (parameters, _) in enumerate(cases):
        name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system, **parameters})
        await claims.create(name, f"data-{number}")

    # A claim can be seen before its class, and then first gets that event.
    await asyncio.gather(
        *(claims.warning(f"data-{number}", expected) for number, (_, expected) in enumerate(cases))
    )
    assert not await claims.volumes()
    assert [await steps.metric(cluster.controller, start) for start in counted] == before
    await claims.delete(*(f"data-{number}" for number in range(len(cases))))


async def test_parameter_without_effect_is_reported_and_harmless(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    parameters = {"fileSystemId": system, "basePaht": "/x", "ensureUniqueDirectory": "no"}
    name = await csi_steps.new_class(cluster.client, parameters=parameters)
    body = claims.body("data", name)
    assert body.spec
    body.spec.volumeAttributesClassName = "gold"
    await cluster.client.create(body)

    volume = await claims.bound("data")

    assert (await _access_point(aws, volume))["RootDirectory"]["Path"] == f"/{volume.name}"
    told = " ".join(sorted(await csi_steps.events(cluster, claims, "data", "ParameterIgnored")))
    assert "ensureUniqueDirectory: 'no' is not a boolean and counts as true" in told
    assert "parameter: 'basePaht' is not known and has no effect; did you mean basePath?" in told
    assert "spec.volumeAttributesClassName: 'gold' has no effect on EFS" in told


async def test_unsupported_access_mode_of_a_claim_is_reported(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    body = claims.body("data", name)
    assert body.spec
    body.spec.volumeMode = "Block"

    await cluster.client.create(body)

    assert "spec.volumeMode: 'Block' cannot be served by NFS" in await claims.warning("data")


async def test_claim_waits_for_a_missing_file_system(cluster: Cluster) -> None:
    claims, missing = await Claims.of(cluster), "fs-0123456789abcdef0"
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": missing})
    await claims.create(name, "data")
    told = await claims.warning("data")
    assert missing in told
    assert "FileSystemNotFound" in told
    await claims.delete("data")


# --- references and roles


@pytest.mark.parametrize(
    ("kind", "key"),
    [(ConfigMap, "fileSystemIdConfigRef"), (Secret, "fileSystemIdSecretRef")],
    ids=["ConfigMap", "Secret"],
)
async def test_file_system_id_is_read_from_another_object(
    cluster: Cluster, aws: Aws, kind: type[ConfigMap | Secret], key: str
) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    namespace = claims.namespace
    await csi_steps.text_in(cluster, kind, namespace, "efs", id=f" {system}\n", typo="not-an-id")
    right = await csi_steps.new_class(
        cluster.client, parameters={"fileSystemId": "-", key: f"{namespace}/efs/id"}
    )
    wrong = await csi_steps.new_class(
        cluster.client, parameters={"fileSystemId": "-", key: f"{namespace}/efs/typo"}
    )
    missing = await csi_steps.new_class(
        cluster.client, parameters={"fileSystemId": "-", key: f"{namespace}/efs/none"}
    )

    assert csi_steps.handle_of(await claims.provisioned(right, "right")).file_system_id == system
    await claims.create(wrong, "wrong")
    told = await claims.warning("wrong")
    assert f"{kind.__name__} {namespace}/efs data.typo: " in told
    assert "is not a valid file system ID" in told
    assert ("not-an-id" in told) == (kind is ConfigMap)
    await claims.create(missing, "missing")
    assert "data.none: is missing or empty; set it to the file system's ID" in await claims.warning("missing")


def _with_secret(system: FileSystemId, namespace: str, **parameters: str) -> dict[str, str]:
    return {
        "fileSystemId": system,
        "csi.storage.k8s.io/provisioner-secret-name": "role",
        "csi.storage.k8s.io/provisioner-secret-namespace": namespace,
        **parameters,
    }


@pytest.mark.parametrize("mode", ["by DNS", "one address", "an address for each zone"])
async def test_volume_of_another_account_contains_how_to_reach_it(
    cluster: Cluster, aws: Aws, mode: str
) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[1]
    targets = await cluster.efs.mount_targets(system)
    zone_ids = {subnet.zone: subnet.zone_id for subnet in cluster.efs.subnets}
    by_zone = {zone_ids[target.zone]: target.address for target in targets}
    zone = targets[1].zone
    dns = {"crossaccount": "true"} if mode == "by DNS" else {}
    await csi_steps.text_in(
        cluster, Secret, claims.namespace, "role", awsRoleArn=ROLE, externalId="kube-efs", **dns
    )
    az = {"az": zone} if mode != "an address for each zone" else {}
    name = await csi_steps.new_class(cluster.client, parameters=_with_secret(system, claims.namespace, **az))
    before = await steps.metric(cluster.controller, CALLS + 'AssumeRole"')

    volume = await claims.provisioned(name, "data")

    assert volume.csi
    pairs = ",".join(f'"{zone}":"{address}"' for zone, address in sorted(by_zone.items()))
    assert (
        dict(volume.csi.attributes)
        == {
            "by DNS": {"crossaccount": "true"},
            "one address": {"mounttargetip": targets[1].address},
            "an address for each zone": {"mounttargetipmap": f"{{{pairs}}}"},
        }[mode]
    )
    assert volume.deletion_secret == (claims.namespace, "role")
    assert await steps.metric(cluster.controller, CALLS + 'AssumeRole"') <= before + 1
    await csi_steps.removed(cluster, claims, "data")
    assert csi_steps.handle_of(volume).access_point_id not in await aws.ids(system)


async def test_file_system_is_looked_up_in_the_account_of_the_role(cluster: Cluster) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[1]
    other = ROLE.replace("123456789012", "210987654321")
    await csi_steps.text_in(cluster, Secret, claims.namespace, "role", awsRoleArn=other, crossaccount="true")
    name = await csi_steps.new_class(cluster.client, parameters=_with_secret(system, claims.namespace))
    await claims.create(name, "data")
    assert "FileSystemNotFound" in await claims.warning("data")
    await claims.delete("data")


async def test_malformed_secret_of_a_role_is_reported_without_its_value(cluster: Cluster) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[1]
    await csi_steps.text_in(cluster, Secret, claims.namespace, "role", awsRoleArn="hush-hush")
    name = await csi_steps.new_class(cluster.client, parameters=_with_secret(system, claims.namespace))
    await claims.create(name, "data")
    told = await claims.warning("data")
    assert "secret awsRoleArn: is not the ARN of a role; use arn:aws:iam::ACCOUNT:role/NAME" in told
    assert "hush" not in told


# --- one access point and several volumes


async def test_next_claim_of_the_same_name_reuses_the_access_point(cluster: Cluster, aws: Aws) -> None:
    claims, other, system = await Claims.of(cluster), await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(
        cluster.client,
        reclaim_policy="Retain",
        parameters={"fileSystemId": system, "reuseAccessPoint": "true"},
    )
    first = await claims.provisioned(name, "data")
    await claims.delete("data")
    await directory_steps.reaches_phase(cluster, first.name, VolumePhase.RELEASED)

    second = await claims.provisioned(name, "data")
    elsewhere = await other.provisioned(name, "data")

    assert second.name != first.name
    assert second.csi == first.csi
    assert elsewhere.csi == first.csi, "the AWS driver's token has no namespace"
    assert len(await aws.ids(system)) == 1
    (told,) = await csi_steps.events(cluster, claims, "data", "AccessPointNotReused")
    assert told == f"No access point of an earlier claim data is on {system}; a new one is created"


async def test_access_point_is_kept_until_its_last_volume_is_deleted(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    volume = await claims.provisioned(name, "data")
    assert volume.csi
    # The same access point as people wrote it for versions of the driver before 3.0.
    twin = PersistentVolume(
        metadata=ObjectMeta(name=f"twin-of-{claims.namespace}"),
        spec=PersistentVolumeSpec(
            accessModes=["ReadWriteMany"],
            capacity={"storage": "1Gi"},
            persistentVolumeReclaimPolicy="Retain",
            storageClassName="by-hand",
            csi=CSIPersistentVolumeSource(driver=DRIVER, volumeHandle=volume.csi.handle.removeprefix("efs:")),
        ),
    )
    await cluster.client.create(twin)
    await claims.delete("data")

    told = await steps.refusal(cluster, volume.name)
    assert f"also leads to the data of volume twin-of-{claims.namespace}; delete the other volumes" in told
    assert len(await aws.ids(system)) == 1

    await cluster.client.delete(PersistentVolume, f"twin-of-{claims.namespace}")
    await steps.gone(cluster.client, volume.name)
    assert await aws.ids(system) == set()


async def test_handle_of_another_file_system_removes_nothing(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    handle = csi_steps.handle_of(await claims.provisioned(name, "data"))
    crafted = VolumeHandle(file_system_id=cluster.file_system_ids[0], access_point_id=handle.access_point_id)
    forged = f"forged-{claims.namespace}"
    await cluster.client.create(_released(forged, str(crafted)))

    told = await steps.refusal(cluster, forged)

    assert f"access point: '{handle.access_point_id}' belongs to {system}" in told
    assert len(await aws.ids(system)) == 1
    await cluster.client.delete(PersistentVolume, forged)
    await steps.gone(cluster.client, forged)
    assert len(await aws.ids(system)) == 1


def _released(name: str, handle: str) -> PersistentVolume:
    volume = directory_steps.released_volume(name, None, **{PROVISIONED_BY: DRIVER})
    assert volume.spec
    volume.spec.csi = CSIPersistentVolumeSource(driver=DRIVER, volumeHandle=handle)
    assert isinstance(volume.spec.claimRef, ObjectReference)
    return volume


# --- the directory of an access point


@asynccontextmanager
async def _removing_directories(cluster: Cluster) -> AsyncIterator[None]:
    async with csi_steps.controller_with(cluster, KUBE_EFS_DELETE_ACCESS_POINT_ROOT_DIR="true"):
        yield


async def test_unused_directories_are_removed_with_access_points_if_configured(
    cluster: Cluster, aws: Aws
) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    base = f"/{claims.namespace}"
    as_it_is = {"ensureUniqueDirectory": "false"}
    classes = {
        "own": {"basePath": base},
        "shared": {"basePath": base, "subPathPattern": "both", **as_it_is},
        "above": {"basePath": base, "subPathPattern": "deep", **as_it_is},
        "below": {"basePath": f"{base}/deep", "subPathPattern": "er", **as_it_is},
        "root": {"subPathPattern": "", **as_it_is},
    }
    names = {
        key: await csi_steps.new_class(
            cluster.client, parameters={"fileSystemId": system, "uid": "0", "gid": "0", **parameters}
        )
        for key, parameters in classes.items()
    }
    async with _removing_directories(cluster):
        folders = {}
        for claim, key in {**{key: key for key in classes}, "twin": "shared"}.items():
            handle = csi_steps.handle_of(await claims.provisioned(names[key], claim))
            assert handle.access_point_id
            folders[claim] = await cluster.efs.access_point_folder(handle.access_point_id)
            (folders[claim] / f"of-{claim}").write_text("x")

        # The root contains everything, so while it exists, all directories are shared.
        await csi_steps.removed(cluster, claims, "root")
        assert (folders["root"] / "of-root").exists()
        await csi_steps.removed(cluster, claims, "own")
        assert not folders["own"].exists()
        await csi_steps.removed(cluster, claims, "shared")
        assert (folders["twin"] / "of-shared").exists()
        await csi_steps.removed(cluster, claims, "twin")
        assert not folders["twin"].exists()
        await csi_steps.removed(cluster, claims, "above")
        assert (folders["below"] / "of-below").exists()
        await csi_steps.removed(cluster, claims, "below")
        assert not folders["below"].exists()
        assert folders["above"].exists()
    (folders["root"] / "of-root").unlink()


# --- many at once


async def test_hundred_claims_cost_a_hundred_calls_and_share_no_id(cluster: Cluster, aws: Aws) -> None:
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    counted = [f'{CALLS}{operation}"' for operation in ("CreateAccessPoint", "DescribeAccessPoints")]
    before = [await steps.metric(cluster.controller, start) for start in counted]

    await claims.create(name, *(f"claim-{number}" for number in range(100)))
    volumes = await claims.all_bound(100)

    after = [await steps.metric(cluster.controller, start) for start in counted]
    assert [new - old for new, old in zip(after, before, strict=True)] == [100, 1]
    points = await aws.described(system)
    assert len({csi_steps.handle_of(volume).access_point_id for volume in volumes}) == len(points) == 100
    assert len({point["PosixUser"]["Gid"] for point in points}) == 100
    assert len({point["PosixUser"]["Uid"] for point in points}) == 100

    await claims.delete(*(f"claim-{number}" for number in range(100)))
    await claims.no_volumes()
    assert await aws.ids(system) == set()


@pytest.mark.parametrize("made", [1, 20], ids=["at the first", "after twenty"])
async def test_killed_controller_creates_no_access_point_twice(cluster: Cluster, aws: Aws, made: int) -> None:
    # After a crash removals would wait for claims of other tests.
    await steps.delete_waiting_claims(cluster.client)
    claims, system = await Claims.of(cluster), await aws.file_system()
    name = await csi_steps.new_class(
        cluster.client, parameters={"fileSystemId": system, "subPathPattern": "${.PVC.name}"}
    )
    await claims.create(name, *(f"claim-{number}" for number in range(40)))

    async def look() -> bool:
        return len(await aws.ids(system)) >= made

    await steps.eventually(look, what=f"{made} access points are there", pause_seconds=0.01)
    await cluster.controller.kill()
    await cluster.controller.start()

    volumes = await claims.all_bound(40)
    points = await aws.described(system)
    assert len({csi_steps.handle_of(volume).access_point_id for volume in volumes}) == len(points) == 40
    assert len({point["PosixUser"]["Gid"] for point in points}) == 40
    await claims.delete(*(f"claim-{number}" for number in range(40)))
    await claims.no_volumes()
    assert await aws.ids(system) == set()
