"""Claims served by csi-provisioner through the Controller service, and by the controller itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from ipaddress import IPv4Network
from typing import Any, NamedTuple, TypeAlias

import grpc.aio
import pytest
import pytest_asyncio
import yaml
from tests.conformance.csi_driver import REGION, Driver
from tests.conformance.installing import MANAGER, NAMESPACE
from tests.conformance.kubectl import Kubectl
from tests.scenarios.csi_steps import SEED_CLAIM, SEED_CLASS, policy_of_pages
from tests.scenarios.steps import eventually

from fake_efs.aws_api import ACCOUNT_ID, DRIVER, AwsApi, aws_client, create_subnets
from kube_efs.aws.gateway import AwsGateway
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import ControllerStub
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs_lab.aws import aws_options
from kube_efs_lab.program import Program
from kube_efs_lab.real_control_plane import RealControlPlane, ServiceAccountName

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLAIM = "pvc/efs-claim-1"
# Starts what serves claims.
Way: TypeAlias = Callable[[Driver], AbstractAsyncContextManager[Program]]
# csi-provisioner asks for the zones of nodes that have the driver, as the driver's node service reports them.
NODE = """
apiVersion: v1
kind: Node
metadata:
  name: node-1
  labels:
    topology.kubernetes.io/zone: us-east-1a
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata:
  name: node-1
spec:
  drivers:
  - name: efs.csi.aws.com
    nodeID: i-0123456789abcdef0
    topologyKeys: [topology.kubernetes.io/zone]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aws(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AwsApi]:
    policy = policy_of_pages("docs/csi.md", "docs/file-systems.md", "docs/s3-files.md")
    api = await AwsApi.start(tmp_path_factory.mktemp("aws") / "aws-api.log", driver_policy=policy)
    yield api
    await api.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def account(aws: AwsApi) -> AsyncIterator[AwsGateway]:
    async with AwsGateway(aws_options(aws.endpoint_url, Region(REGION))) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def driver(
    control_plane: RealControlPlane,
    installed: Kubectl,
    aws: AwsApi,
    tmp_path_factory: pytest.TempPathFactory,
) -> Driver:
    """The controller as ``kube-efs render`` installs it: with the permissions of its service account only.

    In AWS, it has those of the pages, with which every call is checked.
    """
    await installed("apply", "-f", "-", stdin=NODE)
    account = await control_plane.kubeconfig(ServiceAccountName(NAMESPACE, MANAGER))
    return Driver(
        account,
        aws,
        tmp_path_factory.mktemp("csi"),
        administrator=control_plane.admin_kubeconfig,
        namespace=NAMESPACE,
        credentials=DRIVER,
    )


@pytest_asyncio.fixture(loop_scope="session")
async def system(account: AwsGateway, kubectl: Kubectl, request: Any) -> AsyncIterator[FileSystemId]:
    """A new file system, which the class of the older example names."""
    made = (await account.create_file_system(request.node.name[:60])).file_system_id
    await kubectl("apply", "-f", "-", stdin=SEED_CLASS.replace("fs-09a658ebf884ec043", made))
    yield made
    await kubectl("delete", "storageclass", "efs-sc-1")


async def _bound(kubectl: Kubectl) -> dict[str, Any]:
    """Wait until the claim of the older example is Bound; returns its volume."""
    await kubectl("wait", CLAIM, "--for=jsonpath={.status.phase}=Bound", "--timeout=100s")
    name = await kubectl("get", CLAIM, "-o", "jsonpath={.spec.volumeName}")
    found: dict[str, Any] = json.loads(await kubectl("get", "pv", name, "-o", "json"))
    return found


async def _gone(kubectl: Kubectl, volume: dict[str, Any]) -> None:
    """Delete the claim and wait until its volume is deleted."""
    name = volume["metadata"]["name"]
    await kubectl("delete", CLAIM, "--timeout=100s")
    await kubectl("wait", f"pv/{name}", "--for=delete", "--timeout=100s")


def _comparable(volume: dict[str, Any]) -> dict[str, Any]:
    """The fields that the provisioner wrote, except those that differ between claims."""
    metadata, spec = volume["metadata"], volume["spec"]
    uid = spec["claimRef"]["uid"]
    attributes = spec["csi"].get("volumeAttributes", {})
    attributes.pop("storage.kubernetes.io/csiProvisionerIdentity", None)
    kept = {
        "name": metadata["name"].replace(uid, "UID"),
        "labels": metadata.get("labels"),
        "annotations": metadata["annotations"],
        "finalizers": sorted(metadata["finalizers"]),
        "attributes": attributes,
        "claim": {key: spec["claimRef"][key] for key in ("apiVersion", "kind", "namespace", "name")},
    }
    rest = {key: value for key, value in spec.items() if key not in {"claimRef", "csi"}}
    handle = spec["csi"]["volumeHandle"].rpartition("-")[0]
    return kept | rest | {"driver": spec["csi"]["driver"], "handle": handle}


async def test_both_modes_create_the_same_volume_for_the_older_example(
    driver: Driver, account: AwsGateway, system: FileSystemId, kubectl: Kubectl
) -> None:
    made = []
    for way in (driver.with_sidecar, driver.without_sidecar):
        async with way():
            await kubectl("apply", "-f", "-", stdin=SEED_CLAIM)
            volume = await _bound(kubectl)
            (point,) = await account.access_points.list(system)
            made.append(
                (_comparable(volume), point.user, dict(point.tags).keys(), point.directory.parts[:-1])
            )
            assert volume["spec"]["csi"]["volumeHandle"] == f"efs:{system}::{point.access_point_id}"
            await _gone(kubectl, volume)
            assert await account.access_points.list(system) == ()

    assert made[0] == made[1]


@pytest.mark.parametrize("order", ["to csi-provisioner", "from csi-provisioner"])
async def test_each_mode_removes_volumes_of_the_other(
    driver: Driver, account: AwsGateway, system: FileSystemId, kubectl: Kubectl, order: str
) -> None:
    ways = [driver.without_sidecar, driver.with_sidecar]
    first, second = ways if order == "to csi-provisioner" else reversed(ways)
    async with first():
        await kubectl("apply", "-f", "-", stdin=SEED_CLAIM)
        volume = await _bound(kubectl)
    async with second():
        assert (await _bound(kubectl))["metadata"]["uid"] == volume["metadata"]["uid"]
        assert len(await account.access_points.list(system)) == 1
        await _gone(kubectl, volume)

    assert await account.access_points.list(system) == ()


async def test_volume_created_by_csi_provisioner_is_completed_without_it(
    driver: Driver, account: AwsGateway, system: FileSystemId, kubectl: Kubectl
) -> None:
    await kubectl("apply", "-f", "-", stdin=SEED_CLAIM)
    uid = await kubectl("get", CLAIM, "-o", "jsonpath={.metadata.uid}")
    mode = csi.VolumeCapability.AccessMode(mode=csi.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER)
    request = csi.CreateVolumeRequest(
        name=f"pvc-{uid}",
        capacity_range=csi.CapacityRange(required_bytes=5 * 1024**3),
        volume_capabilities=[
            csi.VolumeCapability(mount=csi.VolumeCapability.MountVolume(), access_mode=mode)
        ],
        parameters=yaml.safe_load(SEED_CLASS.replace("fs-09a658ebf884ec043", system))["parameters"],
    )
    # csi-provisioner has had the volume made, and dies before it writes the PersistentVolume.
    async with driver.on_its_socket(), grpc.aio.insecure_channel(f"unix:{driver.socket}") as channel:
        made = await ControllerStub(channel).CreateVolume(request, timeout=60)

    async with driver.without_sidecar():
        volume = await _bound(kubectl)
        assert volume["spec"]["csi"]["volumeHandle"] == made.volume.volume_id
        assert len(await account.access_points.list(system)) == 1
        await _gone(kubectl, volume)
    assert await account.access_points.list(system) == ()


async def test_csi_provisioner_creates_and_removes_a_file_system_for_a_claim(
    aws: AwsApi, driver: Driver, account: AwsGateway, kubectl: Kubectl
) -> None:
    """The other mode needs worker pods for the removal, which this cluster cannot run."""
    subnet = (await create_subnets(aws.endpoint_url, REGION, IPv4Network("10.7.0.0/16")))[0].subnet_id
    own = SEED_CLASS.replace("efs-ap", "efs-fs").replace(
        "fileSystemId: fs-09a658ebf884ec043", f"subnetIds: {subnet}"
    )
    await kubectl("apply", "-f", "-", stdin=own)
    before = {one.file_system_id for one in await account.file_systems()}
    try:
        async with driver.with_sidecar():
            await kubectl("apply", "-f", "-", stdin=SEED_CLAIM)
            volume = await _bound(kubectl)
            (made,) = {one.file_system_id for one in await account.file_systems()} - before
            (point,) = await account.access_points.list(made)
            assert volume["spec"]["csi"]["volumeHandle"] == f"efs:{made}::{point.access_point_id}"
            assert len(await account.mount_targets(made)) == 1
            reason = "--field-selector=involvedObject.name=efs-claim-1,reason=CreatingFileSystem"

            async def told() -> bool:
                texts = await kubectl("get", "events", reason, "-o", "jsonpath={.items[*].message}")
                steps = ("Creating a file system (", f"File system {made}: mount targets 1 of 1 (")
                return all(one in texts for one in steps)

            await eventually(told, what="the claim has an event for each step")
            await _gone(kubectl, volume)
            assert {one.file_system_id for one in await account.file_systems()} == before
    finally:
        await kubectl("delete", "storageclass", "efs-sc-1")


async def test_csi_provisioner_reports_an_invalid_class(
    driver: Driver, system: FileSystemId, kubectl: Kubectl
) -> None:
    wrong = SEED_CLASS.replace("fs-09a658ebf884ec043", system).replace('"700"', '"rwx"')
    wrong = wrong.replace("efs-sc-1", "efs-sc-wrong")
    await kubectl("apply", "-f", "-", stdin=wrong)
    claim = SEED_CLAIM.replace("efs-sc-1", "efs-sc-wrong").replace("efs-claim-1", "wrong")
    async with driver.with_sidecar():
        await kubectl("apply", "-f", "-", stdin=claim)

        async def told() -> str:
            reason = "--field-selector=involvedObject.name=wrong,reason=ProvisioningFailed"
            return await kubectl("get", "events", reason, "-o", "jsonpath={.items[*].message}")

        text = await eventually(told, what="the claim has an event")
    expected = "directoryPerms: 'rwx' is not a valid octal mode; use three or four octal digits, such as 700"
    assert f"code = InvalidArgument desc = {expected}" in text
    await kubectl("delete", "pvc/wrong", "storageclass/efs-sc-wrong")


@pytest.mark.parametrize(
    ("way", "author"),
    [
        (Driver.without_sidecar, "kube-efs-controller"),
        (Driver.with_sidecars, "external-resizer efs.csi.aws.com"),
    ],
)
async def test_claim_is_expanded_if_its_class_allows_it(
    driver: Driver, system: FileSystemId, kubectl: Kubectl, way: Way, author: str
) -> None:
    more = ("patch", CLAIM, "-p", '{"spec": {"resources": {"requests": {"storage": "10Gi"}}}}')
    async with way(driver):
        await kubectl("apply", "-f", "-", stdin=SEED_CLAIM)
        volume = await _bound(kubectl)
        refused = await kubectl.run(*more)
        assert "the storageclass that provisions the pvc must support resize" in refused.errors
        await kubectl("patch", "storageclass/efs-sc-1", "-p", '{"allowVolumeExpansion": true}')

        async def allowed() -> bool:
            # Kubernetes' admission knows of the change a moment later.
            return (await kubectl.run(*more)).status == 0

        await eventually(allowed, what="the claim may request more")
        await kubectl("wait", CLAIM, "--for=jsonpath={.status.capacity.storage}=10Gi", "--timeout=100s")
        assert await kubectl("get", CLAIM, "-o", "jsonpath={.status.conditions}") in {"", "[]"}
        expanded = await _bound(kubectl)
        assert expanded["spec"] == volume["spec"] | {"capacity": {"storage": "10Gi"}}
        reason = "--field-selector=involvedObject.name=efs-claim-1,reason=VolumeResizeSuccessful"

        async def told() -> str:
            return await kubectl("get", "events", reason, "-o", "jsonpath={.items[*].source.component}")

        assert await eventually(told, what="the claim has an event") == author
        await kubectl("delete", "events", reason)
        await _gone(kubectl, expanded)


class Case(NamedTuple):
    """A class; ``refused`` is part of the event of its claims, None for a class that is served."""

    parameters: Mapping[str, str] = {}
    mount_options: tuple[str, ...] = ()
    refused: str | None = None
    annotations: Mapping[str, str] = {}


UID = "efs.csi.aws.com/uid"
SECRET = "csi.storage.k8s.io/node-publish-secret-"
# Stands for a file system of S3 Files.
OF_S3_FILES = "fs-00000000000000000"
CLASSES = {
    "type": Case({"csi.storage.k8s.io/fstype": "efs"}),
    "old-type": Case({"fsType": "efs"}),
    "other-type": Case(
        {"csi.storage.k8s.io/fstype": "ext4"}, refused="csi.storage.k8s.io/fstype: 'ext4' is not supported"
    ),
    "old-other-type": Case({"fsType": "nfs"}, refused="csi.storage.k8s.io/fstype: 'nfs' is not supported"),
    "two-types": Case({"fsType": "efs", "csi.storage.k8s.io/fstype": "efs"}, refused="fstype"),
    "node-secret": Case({f"{SECRET}name": "x", f"{SECRET}namespace": "team"}),
    "half-node-secret": Case({f"{SECRET}name": "x"}, refused="oth"),
    "reserved": Case({"csi.storage.k8s.io/node-secret": "x"}, refused="csi.storage.k8s.io/node-secret"),
    "options": Case(mount_options=("ro,noatime", "nconnect=4", "tlsport=20049", 'az="us-east-1a"')),
    "netns": Case(mount_options=("netns=/run/netns/x",), refused="'netns=/run/netns/x' is not allowed"),
    "port": Case(mount_options=("tls,port=2049",), refused="'port=2049' would bypass the tunnel"),
    "commas": Case(mount_options=('ro,cafile="a,b"',), refused="""'cafile="a,b"' has a comma in its value"""),
    "choice": Case({"allowedUids": "1000-1999"}, annotations={UID: "1001"}),
    "choice-of-root": Case(
        {"allowedUids": "1000-1999"}, annotations={UID: "0"}, refused=f"[{UID}]: '0' is not allowed"
    ),
    "choice-of-none": Case(annotations={UID: "1001"}, refused="which has no allowedUids"),
    "no-identity": Case({"posixUser": "none", "gidRangeStart": "-", "gidRangeEnd": "-"}),
    "s3-files": Case({"provisioningMode": "s3files-ap", "fileSystemId": OF_S3_FILES}),
    "label": Case({"subPathPattern": "${.PVC.labels.none}"}, refused="add it to the labels of the claim"),
    "account": Case(mount_options=("crossaccount",), refused="set crossaccount in the provisioner secret"),
}


async def test_both_modes_serve_and_refuse_the_same_classes(
    driver: Driver, aws: AwsApi, system: FileSystemId, kubectl: Kubectl
) -> None:
    objects = [one for name, case in CLASSES.items() for one in _class_and_claim(name, case, system)]
    async with aws_client("s3files", aws.endpoint_url, REGION) as s3_files:
        made = await s3_files.call(
            "CreateFileSystem",
            bucket="arn:aws:s3:::photos",
            roleArn=f"arn:aws:iam::{ACCOUNT_ID}:role/s3-files",
        )
    documents = yaml.safe_dump_all(objects).replace(OF_S3_FILES, made["fileSystemId"])

    async def outcome(name: str) -> str | None:
        async def told() -> tuple[str | None] | None:
            if await kubectl("get", f"pvc/{name}", "-o", "jsonpath={.status.phase}") == "Bound":
                return (None,)
            reason = f"--field-selector=involvedObject.name={name},reason=ProvisioningFailed"
            lines = 'jsonpath={range .items[*]}{.message}{"\\n"}{end}'
            found = (await kubectl("get", "events", reason, "-o", lines)).splitlines()
            # csi-provisioner may see the claim before its class.
            text = "\n".join(one for one in found if f'"{name}" not found' not in one)
            return (text,) if text else None

        (found,) = await eventually(told, what=f"the claim {name} is served or refused")
        return found

    for way in (driver.with_sidecar, driver.without_sidecar):
        async with way():
            await kubectl("apply", "-f", "-", stdin=documents)
            outcomes = dict(zip(CLASSES, await asyncio.gather(*map(outcome, CLASSES)), strict=True))
            await kubectl("delete", "--timeout=60s", "-f", "-", stdin=documents)
            await kubectl("delete", "events", "--all")
        for name, case in CLASSES.items():
            text = outcomes[name]
            assert (text is None) == (case.refused is None), (way.__name__, name, text)
            assert (case.refused or "") in (text or ""), (way.__name__, name, text)


def _class_and_claim(name: str, case: Case, system: FileSystemId) -> list[dict[str, Any]]:
    made = yaml.safe_load(SEED_CLASS.replace("fs-09a658ebf884ec043", system))
    claim = yaml.safe_load(SEED_CLAIM)
    made["metadata"]["name"] = claim["metadata"]["name"] = claim["spec"]["storageClassName"] = name
    merged = made["parameters"] | dict(case.parameters)
    made["parameters"] = {key: text for key, text in merged.items() if text != "-"}
    claim["metadata"]["annotations"] = dict(case.annotations)
    made["mountOptions"] = list(case.mount_options)
    return [made, claim]
