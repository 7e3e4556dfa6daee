"""The location of a process: the order of the sources, and what happens while one of them is missing."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import pytest
from aiohttp import web
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.models.core_v1 import NodeSpec, Taint
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType
from structlog.testing import capture_logs
from tests.serving import answering, serving

from kube_efs import location as module
from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.kube.client import connect
from kube_efs.location import (
    LocationSource,
    LocationSources,
    Part,
    ProcessLocation,
    find_location,
    find_vpcs,
    locate,
)
from kube_efs.model.efs.ids import Region, SubnetId, ZoneName
from kube_efs.model.errors import InvalidSetting, NotYet
from kube_efs.settings.base import AwsSettings

DOCUMENT = '{"region": "eu-west-1", "availabilityZone": "eu-west-1b", "instanceId": "i-0abc"}'
IDENTITY = "dynamic/instance-identity/document"
MACS = "meta-data/network/interfaces/macs"
NAME = "ip-10-0-0-4.eu-west-1.compute.internal"
LABELS = {"topology.kubernetes.io/zone": "eu-west-1c", "topology.kubernetes.io/region": "eu-central-1"}
ALL = (Part.NODE_ID, Part.ZONE, Part.ZONE_ID, Part.SUBNETS)
OF_THE_INSTANCE = ProcessLocation(
    node_id="i-0abc",
    region=Region("eu-west-1"),
    zone=ZoneName("eu-west-1b"),
    zone_id=ZoneName("euw1-az2"),
    subnets=(SubnetId("subnet-0a"), SubnetId("subnet-0b")),
)
OF_THE_NODE = ProcessLocation(
    node_id="i-0a1b", region=Region("eu-central-1"), zone=ZoneName("eu-west-1c"), zone_id=ZoneName("euw1-az3")
)
STORED = ProcessLocation(
    region=Region("us-east-1"), zone=ZoneName("us-east-1a"), subnets=(SubnetId("subnet-9"),)
)


class Imds:
    """Instance metadata; ``entries`` can be changed, and a path of ``silent`` is never answered."""

    def __init__(self) -> None:
        self.requests = 0
        self.url = ""
        self.silent = ""
        self.entries = {
            "api/token": "token",
            IDENTITY: DOCUMENT,
            "meta-data/placement/availability-zone-id": "euw1-az2",
            f"{MACS}/": "02:00:00:00:00:01/\n02:00:00:00:00:02/",
            f"{MACS}/02:00:00:00:00:01/subnet-id": "subnet-0a",
            f"{MACS}/02:00:00:00:00:02/subnet-id": "subnet-0b",
        }

    async def answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        path = request.match_info["path"]
        if path == self.silent:
            await asyncio.Event().wait()
        return web.Response(text=self.entries[path]) if path in self.entries else web.Response(status=404)


@pytest.fixture
async def imds() -> AsyncIterator[tuple[Imds, InstanceMetadata]]:
    fake = Imds()
    async with (
        serving(answering(fake.answer, "/latest/")) as fake.url,
        InstanceMetadata(fake.url, timeout_seconds=10) as metadata,
    ):
        yield fake, metadata


@pytest.fixture
async def no_metadata() -> AsyncIterator[InstanceMetadata]:
    async with InstanceMetadata("http://127.0.0.1:9", timeout_seconds=0.2) as metadata:
        yield metadata


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "KUBE_EFS_ZONE", "KUBE_EFS_ZONE_ID", "KUBE_EFS_SUBNETS"):
        monkeypatch.delenv(name, raising=False)


def sources(metadata: InstanceMetadata, client: AsyncClient | None = None, **more: Any) -> LocationSources:
    return LocationSources(
        **{"settings": AwsSettings(), "node_name": NAME, "metadata": metadata, "client": client, **more}
    )


async def create_node(
    kube: AsyncClient,
    *,
    name: str = NAME,
    labels: Mapping[str, str] = MappingProxyType({**LABELS, "topology.k8s.aws/zone-id": "euw1-az3"}),
    provider_id: str | None = "aws:///eu-west-1c/i-0a1b",
    taints: tuple[str, ...] = (),
) -> None:
    spec = NodeSpec(
        providerID=provider_id, taints=[Taint(key=one, effect="NoSchedule") for one in taints] or None
    )
    await kube.create(Node(metadata=ObjectMeta(name=name, labels=dict(labels)), spec=spec))


async def create_infrastructure(kube: AsyncClient, region: str) -> None:
    names = {"kind": "Infrastructure", "plural": "infrastructures", "singular": "infrastructure"}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    definition = {
        "metadata": {"name": "infrastructures.config.openshift.io"},
        "spec": {
            "group": "config.openshift.io",
            "names": names,
            "scope": "Cluster",
            "versions": [version],
        },
    }
    await kube.create(cast("CustomResourceDefinition", CustomResourceDefinition.from_dict(definition)))
    body = {"metadata": {"name": "cluster"}, "status": {"platformStatus": {"aws": {"region": region}}}}
    await kube.create(module._Infrastructure.from_dict(body))


# --- the order of the sources


async def test_settings_come_first_and_instance_metadata_complete_them(
    imds: tuple[Imds, InstanceMetadata], kube: AsyncClient
) -> None:
    await create_node(kube)
    _, metadata = imds
    settings = AwsSettings(region=Region("us-east-1"))
    found = await locate(sources(metadata, kube, settings=settings), required=Part.REGION, also=ALL)
    assert found == replace(OF_THE_INSTANCE, region=Region("us-east-1"))
    assert (found.region_source, found.zone_source) == (LocationSource.SETTINGS, LocationSource.METADATA)


async def test_zone_of_the_settings_does_not_get_the_zone_id_of_another_zone(
    imds: tuple[Imds, InstanceMetadata],
) -> None:
    _, metadata = imds
    elsewhere = AwsSettings(zone=ZoneName("eu-west-1c"), subnets=(SubnetId("subnet-9"),))
    found = await locate(sources(metadata, settings=elsewhere), required=Part.REGION, also=ALL)
    assert (found.zone, found.zone_id, found.subnets) == ("eu-west-1c", None, ("subnet-9",))
    here = AwsSettings(zone=ZoneName("eu-west-1b"))
    assert (await locate(sources(metadata, settings=here), required=Part.REGION, also=ALL)) == OF_THE_INSTANCE


async def test_node_object_replaces_missing_instance_metadata(
    no_metadata: InstanceMetadata, kube: AsyncClient
) -> None:
    await create_node(kube)
    found = await locate(sources(no_metadata, kube, stored=STORED), required=Part.REGION, also=ALL)
    assert found == OF_THE_NODE
    assert (found.region_source, found.zone_source) == (LocationSource.NODE, LocationSource.NODE)


async def test_infrastructure_gives_the_region_that_no_label_gives(
    no_metadata: InstanceMetadata, kube: AsyncClient
) -> None:
    await create_node(kube, labels={"topology.kubernetes.io/zone": "eu-west-1c"})
    await create_infrastructure(kube, "ap-south-1")
    found = await locate(sources(no_metadata, kube), required=Part.REGION, also=(Part.ZONE,))
    assert (found.region, found.region_source) == ("ap-south-1", LocationSource.INFRASTRUCTURE)
    assert (found.zone, found.zone_source) == ("eu-west-1c", LocationSource.NODE)


async def test_stored_location_comes_last(no_metadata: InstanceMetadata, kube: AsyncClient) -> None:
    found = await locate(sources(no_metadata, kube, stored=STORED), required=Part.REGION, also=(Part.ZONE,))
    assert found == STORED
    assert (found.region_source, found.zone_source) == (LocationSource.STORED, LocationSource.STORED)


async def test_stored_subnets_of_the_same_zone_complete_the_node_object(
    no_metadata: InstanceMetadata, kube: AsyncClient
) -> None:
    await create_node(kube)
    stored = replace(STORED, zone=ZoneName("eu-west-1c"))
    found = await locate(sources(no_metadata, kube, stored=stored), required=Part.REGION, also=ALL)
    assert found == replace(OF_THE_NODE, subnets=STORED.subnets)


async def test_sources_are_not_read_for_known_parts(imds: tuple[Imds, InstanceMetadata]) -> None:
    fake, metadata = imds
    settings = AwsSettings(
        region=Region("us-east-1"), zone=ZoneName("us-east-1a"), subnets=(SubnetId("subnet-1"),)
    )
    wanted = (Part.ZONE, Part.SUBNETS)
    found = await locate(sources(metadata, settings=settings), required=Part.REGION, also=wanted)
    assert (found.region, found.zone, found.subnets) == ("us-east-1", "us-east-1a", ("subnet-1",))
    assert fake.requests == 0


async def test_missing_subnets_and_zone_id_are_accepted(imds: tuple[Imds, InstanceMetadata]) -> None:
    fake, metadata = imds
    fake.entries[f"{MACS}/"] = ""
    del fake.entries["meta-data/placement/availability-zone-id"]
    found = await locate(sources(metadata), required=Part.REGION, also=ALL)
    assert found == replace(OF_THE_INSTANCE, subnets=(), zone_id=None)


async def test_node_object_completes_the_zone_id_of_the_same_zone(
    imds: tuple[Imds, InstanceMetadata], kube: AsyncClient
) -> None:
    fake, metadata = imds
    del fake.entries["meta-data/placement/availability-zone-id"]
    labels = {"topology.kubernetes.io/zone": "eu-west-1b", "topology.k8s.aws/zone-id": "euw1-az2"}
    await create_node(kube, labels=labels)
    assert await locate(sources(metadata, kube), required=Part.REGION, also=ALL) == OF_THE_INSTANCE


async def test_silent_instance_metadata_delay_the_start_by_a_few_seconds_only(
    imds: tuple[Imds, InstanceMetadata], kube: AsyncClient
) -> None:
    fake, _ = imds
    fake.silent = "api/token"
    await create_node(kube)
    async with asyncio.timeout(30), InstanceMetadata(fake.url, timeout_seconds=0.3) as metadata:
        assert await locate(sources(metadata, kube), required=Part.REGION, also=ALL) == OF_THE_NODE
    # The token, in three attempts of a second: nothing else is requested without one.
    assert fake.requests == 3


# --- who a node is


@pytest.mark.parametrize(
    ("name", "provider_id", "node_id"),
    [
        pytest.param(NAME, "aws:///eu-west-1c/i-0a1b2c3d4e5f60718", "i-0a1b2c3d4e5f60718", id="instance"),
        pytest.param(
            NAME,
            "aws:///eu-west-1c/sagemaker/cluster/hyperpod-0123456789abcdefghijklmnopqrstuv-x",
            "0123456789abcdefghijklmnopqrstuv",
            id="node of HyperPod",
        ),
        pytest.param(NAME, None, NAME, id="machine outside of AWS"),
        pytest.param("hybrid", "eks-hybrid:///eu-west-1/cluster/mi-0a1b", "mi-0a1b"[1:], id="hybrid node"),
    ],
)
async def test_node_is_identified_by_its_object_without_metadata(
    no_metadata: InstanceMetadata, kube: AsyncClient, name: str, provider_id: str | None, node_id: str
) -> None:
    await create_node(kube, name=name, provider_id=provider_id, labels=LABELS)
    found = await locate(sources(no_metadata, kube, node_name=name), required=Part.NODE_ID, also=ALL)
    assert (found.node_id, found.zone, found.region, found.zone_id) == (
        node_id,
        "eu-west-1c",
        "eu-central-1",
        None,
    )


async def test_node_is_identified_by_instance_metadata(imds: tuple[Imds, InstanceMetadata]) -> None:
    _, metadata = imds
    found = await locate(sources(metadata), required=Part.NODE_ID, also=(Part.REGION, Part.ZONE))
    assert found == replace(OF_THE_INSTANCE, subnets=())


async def test_hyperpod_node_is_located_by_its_object(
    imds: tuple[Imds, InstanceMetadata], kube: AsyncClient
) -> None:
    fake, metadata = imds
    await create_node(kube, name="hyperpod-i-0aaa")
    found = await locate(sources(metadata, kube, node_name="hyperpod-i-0aaa"), required=Part.REGION, also=ALL)
    assert found == OF_THE_NODE
    assert fake.requests == 0


async def test_unidentified_node_is_reported_with_all_reasons(
    no_metadata: InstanceMetadata, kube: AsyncClient
) -> None:
    with pytest.raises(NotYet, match="cannot be identified") as caught:
        await locate(sources(no_metadata, kube), required=Part.NODE_ID)
    assert str(caught.value).count("instance metadata: ") == 1
    assert f"node {NAME}: answered 404" in str(caught.value)

    with pytest.raises(InvalidSetting, match="no kubeconfig and no service account"):
        await locate(sources(no_metadata), required=Part.NODE_ID)


# --- waiting


async def test_process_waits_until_the_cluster_has_the_node(
    no_metadata: InstanceMetadata, kube: AsyncClient
) -> None:
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            await create_node(kube)

    with capture_logs() as logs:
        found = await find_location(
            sources(no_metadata, kube), required=Part.REGION, also=(Part.ZONE,), sleep=sleep
        )
    assert found == OF_THE_NODE
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    waiting, found_event = logs[0], logs[-1]
    assert "set AWS_REGION" in waiting["reason"]
    assert found_event["event"] == "location-found"
    assert (found_event["region_source"], found_event["zone_source"]) == ("Node object", "Node object")


async def test_process_waits_for_the_zone_while_the_cloud_controller_has_not_initialized_the_node(
    no_metadata: InstanceMetadata, kube: AsyncClient
) -> None:
    await create_node(kube, labels={}, taints=("node.cloudprovider.kubernetes.io/uninitialized",))
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await kube.patch(Node, NAME, {"metadata": {"labels": LABELS}}, patch_type=PatchType.MERGE)

    here = sources(no_metadata, kube, settings=AwsSettings(region=Region("us-east-1")))
    found = await find_location(here, required=Part.REGION, also=(Part.ZONE,), sleep=sleep)
    assert (found.region, found.zone) == ("us-east-1", "eu-west-1c")
    assert pauses == [1]


async def test_process_waits_for_the_zone_while_the_api_server_is_unreachable(
    no_metadata: InstanceMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SOURCE_SECONDS", 0.3)
    nobody = KubeConfig.from_one(cluster=Cluster(server="http://127.0.0.1:9"), user=User()).get()
    assert nobody
    settings = AwsSettings(region=Region("us-east-1"))
    async with connect(nobody) as client:
        with pytest.raises(NotYet, match="set KUBE_EFS_ZONE"):
            await locate(
                sources(no_metadata, client, settings=settings), required=Part.REGION, also=(Part.ZONE,)
            )


async def test_node_without_a_zone_is_accepted(no_metadata: InstanceMetadata, kube: AsyncClient) -> None:
    await create_node(kube, labels={})
    here = sources(no_metadata, kube, settings=AwsSettings(region=Region("us-east-1")))
    found = await find_location(here, required=Part.REGION, also=(Part.ZONE,))
    assert (found.region, found.zone, found.zone_source) == ("us-east-1", None, None)


async def test_invalid_label_is_reported_and_not_used(
    no_metadata: InstanceMetadata, kube: AsyncClient
) -> None:
    await create_node(kube, labels={"topology.kubernetes.io/region": "Not_A_Region"})
    with pytest.raises(NotYet, match="Not_A_Region"):
        await locate(sources(no_metadata, kube), required=Part.REGION)


@pytest.mark.parametrize("zone", ["DC1", "rack_1", "room.2"])
async def test_zone_with_a_name_of_ones_own_does_not_prevent_the_start(
    no_metadata: InstanceMetadata, kube: AsyncClient, zone: str
) -> None:
    """A machine outside of AWS, connected by VPN; its zone is valid for Kubernetes."""
    await create_node(kube, provider_id=None, labels={**LABELS, "topology.kubernetes.io/zone": zone})
    with capture_logs() as logs:
        found = await locate(sources(no_metadata, kube), required=Part.NODE_ID, also=(Part.REGION, Part.ZONE))
    assert found == ProcessLocation(node_id=NAME, region=Region("eu-central-1"))
    reason = logs[-1]["not_available"][-1]
    assert reason.startswith(f"node {NAME}, label topology.kubernetes.io/zone: zone: '{zone}' is not valid")


@pytest.mark.parametrize("text", ["<html>", "{", '{"region": "x y"}'])
async def test_start_waits_while_answers_are_invalid(imds: tuple[Imds, InstanceMetadata], text: str) -> None:
    fake, metadata = imds
    fake.entries[IDENTITY] = text
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            fake.entries[IDENTITY] = DOCUMENT

    found = await find_location(sources(metadata), required=Part.REGION, sleep=sleep)
    assert found.region == "eu-west-1"
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_start_does_not_wait_for_values_that_only_a_setting_provides(
    no_metadata: InstanceMetadata,
) -> None:
    with pytest.raises(InvalidSetting, match="set AWS_REGION") as caught:
        await find_location(sources(no_metadata), required=Part.REGION)
    assert caught.value.field == "AWS_REGION"


# --- VPCs


@pytest.mark.parametrize(
    ("vpcs", "known"),
    [
        pytest.param(("vpc-0a", "vpc-0b"), {"vpc-0a", "vpc-0b"}, id="of all interfaces"),
        pytest.param((), set(), id="none"),
        pytest.param(("no vpc",), set(), id="invalid"),
    ],
)
async def test_vpcs_of_an_instance_are_listed(
    imds: tuple[Imds, InstanceMetadata], vpcs: tuple[str, ...], known: set[str]
) -> None:
    fake, metadata = imds
    for number, vpc in enumerate(vpcs, 1):
        fake.entries[f"{MACS}/02:00:00:00:00:0{number}/vpc-id"] = vpc
    assert await find_vpcs(metadata) == known


async def test_vpcs_are_unknown_without_metadata(no_metadata: InstanceMetadata) -> None:
    assert await find_vpcs(no_metadata) == frozenset()
