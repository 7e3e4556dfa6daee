"""Mounts that pods sign themselves, and repeated calls of the kubelet, on a simulated node."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from grpc import StatusCode
from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ServiceAccount
from lightkube.types import PatchType
from tests.unit.csi.node_world import BY_ZONE_ID, FS, HERE, IN_ZONE_2, WITHOUT_ZONE_ID, World
from tests.unit.csi.tokens import ROLE, pod_token, token_context

from kube_efs.aws.credential_sources import ServiceAccountIdentity
from kube_efs.csi.codes import code_of
from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.node_volumes import NodeVolumes
from kube_efs.csi.pod_tokens import read_pod_tokens
from kube_efs.csi.publication import NodeMount, Publication, VolumeUse
from kube_efs.model.csi.capabilities import AccessMode, VolumeCapability
from kube_efs.model.csi.errors import ExistingVolumeDiffers, NoMountTarget
from kube_efs.model.csi.mount_options import plan_mount
from kube_efs.model.csi.volume_attributes import parse_attributes
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.errors import (
    AwsDenied,
    KubeEfsError,
    MountFailed,
    PlatformError,
    TunnelNotReady,
)
from kube_efs.tunnels.sockets import ports

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
Servers = Callable[..., None]
STS, POD_IDENTITY = "sts.amazonaws.com", "pods.eks.amazonaws.com"
# After every other code, the kubelet counts a volume that may be mounted as not mounted, and never unmounts
# it (isFinalError in its pkg/volume/csi/csi_client.go).
NOT_FINAL = {
    StatusCode.CANCELLED,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.UNAVAILABLE,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.ABORTED,
}


@dataclass(frozen=True)
class Node:
    """A node, and a driver that has just started."""

    world: World
    volumes: NodeVolumes

    def wanted(
        self, target: str, account: str = "web", number: int = 1, at: Mapping[str, str] = HERE
    ) -> Publication:
        """A request for a pod with this service account; ``number`` is that of its tokens."""
        plan = plan_mount(
            parse_volume_handle(FS),
            parse_attributes({**at, "authenticationSource": "pod"}),
            # The last option causes a warning, which must not make repeated requests differ.
            VolumeCapability(access_mode=AccessMode.MULTI_NODE_MULTI_WRITER, mount_flags=("iam", "stunnel")),
            read_only=False,
        )
        assert plan.warnings
        mount = NodeMount(volume_id=FS, target=self.world.target(target))
        tokens = read_pod_tokens(token_context("default", account, number), {})
        return Publication(use=VolumeUse(mount=mount), plan=plan, tokens=tokens)

    async def publish(self, wanted: Publication) -> None:
        """As the service does for each call of the kubelet."""
        if not await self.volumes.refresh(wanted):
            await self.volumes.publish(wanted, timeout_seconds=60)

    async def cancel_but_mount(self, wanted: Publication, eventually: Eventually) -> None:
        """Cancel a call in mount(8), whose mount(2) succeeds although the program is killed."""

        async def is_mounting() -> bool:
            return self.world.mounting == 1

        self.world.gate.clear()
        call = asyncio.create_task(self.publish(wanted))
        await eventually(is_mounting)
        self.world.chance = lambda: True
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        self.world.chance = lambda: False
        self.world.gate.set()
        assert wanted.mount.target in self.mounts

    @property
    def mounts(self) -> dict[Path, str]:
        """The lines of the mount table, which contain an ID for each mount."""
        return dict(self.world.mounted)


@pytest.fixture
async def node(tmp_path: Path, kube: AsyncClient) -> Node:
    for name, annotations in {"web": {"eks.amazonaws.com/role-arn": ROLE}, "batch": {}}.items():
        metadata = ObjectMeta(namespace="default", name=name, annotations=annotations)
        await kube.create(ServiceAccount(metadata=metadata))
    world = World(tmp_path, client=kube)
    return Node(world, world.volumes())


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Writes the ports to the kernel's table of NFS servers. At first, it has that of the first tunnel."""
    table = tmp_path / "servers"
    monkeypatch.setattr(ports, "_NFS_SERVERS", table)

    def show(*ports: int) -> None:
        lines = (f"v4 7f000001 {port:x}   1 127.0.0.1\n" for port in ports)
        table.write_text("".join(("NV SERVER   PORT USE HOSTNAME\n", *lines)))

    show(22000)
    return show


async def failed(call: Awaitable[object]) -> KubeEfsError:
    with pytest.raises(KubeEfsError) as caught:
        await call
    return caught.value


async def test_service_accounts_never_share_a_tunnel(node: Node) -> None:
    wanted = [node.wanted("one"), node.wanted("two"), node.wanted("three", "batch")]
    for one in wanted:
        await node.publish(one)
    by_identity = {spec.iam: holders for spec, holders in node.world.holders_by_spec.items()}
    assert by_identity == {
        ServiceAccountIdentity(namespace="default", name="web", role_arn=ROLE): {
            one.mount.holder for one in wanted[:2]
        },
        ServiceAccountIdentity(namespace="default", name="batch"): {wanted[2].mount.holder},
    }
    of_web, of_batch = pod_token("default", "web", STS), pod_token("default", "batch", POD_IDENTITY)
    assert node.world.pod_tokens == [of_web, of_web, of_batch]
    assert len({line.rpartition("port=")[2] for line in node.mounts.values()}) == 2


async def test_repeated_call_gives_new_tokens_to_the_agent_and_mounts_nothing(node: Node) -> None:
    await node.publish(node.wanted("one"))
    mounts = node.mounts
    for number in (2, 3):
        assert await node.volumes.refresh(node.wanted("one", number=number))
    assert node.mounts == mounts
    assert node.world.pod_tokens == [pod_token("default", "web", STS, number) for number in (1, 2, 3)]


async def test_repeated_call_for_the_identity_of_the_node_calls_no_agent(node: Node) -> None:
    wanted = node.world.wanted("one")
    await node.publish(wanted)
    node.world.chance = lambda: True  # every call of the agent fails
    assert await node.volumes.refresh(wanted)


async def test_repeated_call_mounts_again_what_is_not_mounted(node: Node) -> None:
    wanted = node.wanted("one")
    await node.publish(wanted)
    node.world.mounted.clear()
    assert not await node.volumes.refresh(wanted)
    await node.publish(wanted)
    assert node.mounts.keys() == {wanted.mount.target}


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_mount_keeps_its_role_when_the_annotation_changes(node: Node, is_restarted: bool) -> None:
    await node.publish(node.wanted("one"))
    mounts = node.mounts
    metadata = {"annotations": {"eks.amazonaws.com/role-arn": f"{ROLE}-2"}}
    assert node.world.client
    await node.world.client.patch(
        ServiceAccount, "web", {"metadata": metadata}, namespace="default", patch_type=PatchType.MERGE
    )
    later = Node(node.world, node.world.volumes()) if is_restarted else node
    await later.publish(later.wanted("one", number=2))
    assert node.mounts == mounts
    [spec] = node.world.holders_by_spec
    assert spec.iam == ServiceAccountIdentity(namespace="default", name="web", role_arn=ROLE)
    # The mount of a later pod has the new role, and another tunnel.
    await later.publish(later.wanted("two", number=2))
    assert len(node.world.holders_by_spec) == 2


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_another_service_account_at_the_same_target_is_refused(node: Node, is_restarted: bool) -> None:
    await node.publish(node.wanted("one"))
    later = Node(node.world, node.world.volumes()) if is_restarted else node
    with pytest.raises(ExistingVolumeDiffers, match="through another tunnel") as caught:
        await later.publish(later.wanted("one", "batch"))
    # An earlier call has mounted this volume there, and the kubelet has to unmount it.
    assert code_of(caught.value) in NOT_FINAL
    assert node.world.pod_tokens == [pod_token("default", "web", STS)]


async def test_driver_that_restarts_without_its_zone_gives_new_tokens_to_the_agent(node: Node) -> None:
    await Node(node.world, node.world.volumes(IN_ZONE_2)).publish(node.wanted("one", at=BY_ZONE_ID))
    mounts, holders = node.mounts, node.world.holders
    restarted = Node(node.world, node.world.volumes(WITHOUT_ZONE_ID))
    for number in (2, 3):
        await restarted.publish(node.wanted("one", number=number, at=BY_ZONE_ID))
    assert node.world.pod_tokens == [pod_token("default", "web", STS, number) for number in (1, 2, 3)]
    assert (node.mounts, node.world.holders) == (mounts, holders)
    assert len(node.world.holders_by_spec) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_refused_token_is_an_error_and_leaves_the_mount(node: Node, is_restarted: bool) -> None:
    wanted = node.wanted("one")
    await node.publish(wanted)
    mounts, holders = node.mounts, node.world.holders
    later = Node(node.world, node.world.volumes()) if is_restarted else node
    node.world.refusal = AwsDenied("is refused", field="service account default/web")
    with pytest.raises(AwsDenied) as caught:
        await later.publish(later.wanted("one", number=2))
    assert code_of(caught.value) in NOT_FINAL
    assert (node.mounts, node.world.holders) == (mounts, holders)
    node.world.refusal = None
    await later.publish(later.wanted("one", number=3))
    assert node.mounts == mounts


async def test_pod_whose_token_is_refused_gets_no_mount(node: Node) -> None:
    node.world.refusal = AwsDenied("is refused", field="service account default/web")
    with pytest.raises(AwsDenied) as caught:
        await node.publish(node.wanted("one"))
    assert code_of(caught.value) is StatusCode.PERMISSION_DENIED
    assert (node.mounts, node.world.holders) == ({}, set())
    assert not node.world.target("one").exists()


async def test_mount_through_the_connection_of_another_identity_is_refused(
    node: Node, servers: Servers
) -> None:
    await node.publish(node.wanted("one"))
    mounts, holders = node.mounts, node.world.holders
    for other in (node.wanted("two", "batch"), node.world.wanted("three", one_pod=False, flags=("iam",))):
        with pytest.raises(MountFailed, match="connection of another identity") as caught:
            await node.publish(other)
        assert code_of(caught.value) is StatusCode.INTERNAL  # it is unmounted
    assert (node.mounts, node.world.holders) == (mounts, holders)
    await node.publish(node.wanted("four"))
    assert len(node.mounts) == 2


async def test_error_after_a_late_mount_lets_the_kubelet_unmount_it(
    node: Node, servers: Servers, eventually: Eventually
) -> None:
    await node.publish(node.wanted("one"))
    wanted = node.wanted("two", "batch")
    await node.cancel_but_mount(wanted, eventually)
    for driver in (node, Node(node.world, node.world.volumes())):
        error = await failed(driver.publish(wanted))
        assert "connection of another identity" in error.problem
        assert code_of(error) in NOT_FINAL
    assert node.mounts.keys() == {node.world.target("one"), wanted.mount.target}


async def test_late_mount_of_the_node_is_checked_once(
    node: Node, servers: Servers, eventually: Eventually
) -> None:
    await node.publish(node.wanted("one"))
    of_node = node.world.wanted("two", one_pod=False, flags=("iam",))
    await node.cancel_but_mount(of_node, eventually)
    for _ in range(2):
        with pytest.raises(MountFailed, match="connection of another identity"):
            await node.publish(of_node)
    servers(22000, 22001)
    await node.volumes.publish(of_node, timeout_seconds=60)
    # It has passed: from now on, its connection may be that of another mount of the node.
    servers(22000)
    await node.volumes.publish(of_node, timeout_seconds=60)


async def test_mounted_volume_that_cannot_be_checked_can_be_unmounted_later(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = node.wanted("one")
    await node.publish(wanted)
    restarted = node.world.volumes()
    monkeypatch.setattr(ports, "_NFS_SERVERS", tmp_path)  # a directory
    error = await failed(restarted.publish(wanted, timeout_seconds=60))
    assert isinstance(error, PlatformError)
    assert code_of(error) in NOT_FINAL

    async def is_unknown(*_: object) -> bool:
        raise PlatformError("cannot be read", field="mounts")

    monkeypatch.setattr(type(node.world.table), "is_mounted", is_unknown)
    assert code_of(await failed(restarted.publish(wanted, timeout_seconds=60))) in NOT_FINAL
    assert code_of(await failed(node.volumes.refresh(wanted))) in NOT_FINAL


async def test_mount_without_tls_whose_server_is_no_longer_known_can_be_unmounted_later(node: Node) -> None:
    wanted = node.world.wanted("one", tls=False, one_pod=False)
    await node.publish(wanted)
    without_address = replace(wanted.plan, attributes=parse_attributes({"encryptInTransit": "false"}))
    nowhere = NodeVolumes(node.world, node.world, NodeInfo(node_id="node"))
    error = await failed(nowhere.publish(replace(wanted, plan=without_address), timeout_seconds=60))
    assert isinstance(error, NoMountTarget)
    assert code_of(error) in NOT_FINAL


async def test_tunnels_of_the_node_may_share_a_connection(node: Node, servers: Servers) -> None:
    for target, flags in (("one", ()), ("two", ("iam",))):
        await node.publish(node.world.wanted(target, one_pod=False, flags=flags))
    assert len(node.mounts) == 2


@pytest.mark.parametrize("is_of_pod", [True, False])
async def test_mount_that_could_not_be_undone_is_refused_again(
    is_of_pod: bool, node: Node, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.publish(node.wanted("one"))
    of_node = node.world.wanted("two", one_pod=False, flags=("iam",))
    wanted = node.wanted("two", "batch") if is_of_pod else of_node

    async def fail(*_given: object, **_options: object) -> None:
        raise MountFailed("is busy", field="target")

    with monkeypatch.context() as busy:
        busy.setattr(World, "unmount", fail)
        with pytest.raises(MountFailed, match="is busy") as caught:
            await node.publish(wanted)
    assert code_of(caught.value) in NOT_FINAL
    for _ in range(2):
        with pytest.raises(MountFailed, match="connection of another identity") as caught:
            await node.publish(wanted)
        assert code_of(caught.value) in NOT_FINAL
    await node.volumes.unpublish(wanted.mount, timeout_seconds=60)
    servers(22000, 22001)
    await node.publish(wanted)


async def test_agent_that_fails_after_the_mount_causes_no_second_mount(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = tmp_path / "servers"
    monkeypatch.setattr(ports, "_NFS_SERVERS", servers)
    servers.write_text("NV SERVER   PORT USE HOSTNAME\n")
    calls = []
    mount = World.mount

    async def counted(self: World, source: str, target: Path, options: str) -> None:
        calls.append(options)
        await mount(self, source, target, options)

    async def lost() -> tuple[()]:
        raise TunnelNotReady("does not answer", field="tunnel agent")

    monkeypatch.setattr(World, "mount", counted)
    monkeypatch.setattr(World, "tunnels", lambda _: lost())
    wanted = node.world.wanted("one", one_pod=False, flags=("tls", "iam=auto"))
    with pytest.raises(TunnelNotReady):
        await node.publish(wanted)
    assert len(calls) == 1


async def test_first_mount_of_a_pod_through_a_connection_that_is_not_of_a_tunnel_on_demand_is_refused(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = tmp_path / "servers"
    monkeypatch.setattr(ports, "_NFS_SERVERS", servers)
    # A tunnel volume of the node (port 20001, of the ConfigMap, anonymous), and a mount without TLS.
    servers.write_text(
        "NV SERVER   PORT USE HOSTNAME\nv4 7f000001 4e21   1 127.0.0.1\nv4 0a000005  801   1 10.0.0.5\n"
    )
    with pytest.raises(MountFailed):
        await node.publish(node.wanted("one"))


async def test_mounts_of_the_node_share_a_connection_also_after_a_pod_has_signed_one(
    node: Node, servers: Servers
) -> None:
    one = node.wanted("one")
    await node.publish(one)
    servers(22000, 22001)
    await node.publish(node.world.wanted("two", one_pod=False))
    # The pod ends; the agent closes its tunnel some minutes later. The only client is the node's.
    await node.volumes.unpublish(one.mount, timeout_seconds=60)
    servers(22001)
    await node.publish(node.world.wanted("three", f"{FS}::fsap-0123456789abcdef0", one_pod=False))
