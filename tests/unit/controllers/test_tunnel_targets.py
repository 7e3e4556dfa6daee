"""The ConfigMap and the ports, on the embedded API server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume, PersistentVolumeClaim
from lightkube.types import PatchType
from structlog.testing import capture_logs

from kube_efs.controllers import tunnel_targets
from kube_efs.controllers.root_volumes import RootVolumes
from kube_efs.controllers.tunnel_targets import TargetsReports, TunnelTargetsController
from kube_efs.kube.reading import read_volume
from kube_efs.model.efs.file_systems import Discovery, FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, SubnetId, ZoneName
from kube_efs.model.efs.targets import (
    CONFIG_MAP_KEY,
    TunnelTarget,
    TunnelTargets,
    parse_targets,
    render_targets,
)
from kube_efs.model.errors import InvalidValue, KubeAlreadyExists, KubeConflict
from kube_efs.model.names import KUBE_EFS, OPENSHIFT_EFS_STUNNEL, Names
from kube_efs.model.volumes import NfsSource, Volume
from kube_efs.provisioning.volume_index import VolumeIndex

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

FS1, FS2, FS3 = (FileSystemId(f"fs-{number}") for number in (1, 2, 3))


def system(fs: FileSystemId, address: str = "10.0.0.4") -> FileSystem:
    target = MountTarget(
        mount_target_id=MountTargetId(f"fsmt-{fs}"),
        file_system_id=fs,
        subnet_id=SubnetId("subnet-a"),
        zone=ZoneName("us-east-1a"),
        address=address,
        state=LifeCycleState.AVAILABLE,
    )
    return FileSystem(file_system_id=fs, mount_targets=(target,))


def discovery(*systems: FileSystem, unclear: frozenset[FileSystemId] = frozenset()) -> Discovery:
    return Discovery(
        file_systems={one.file_system_id: one for one in systems}, unclear=unclear, complete=True
    )


async def _nobody_uses(_: str) -> None:
    return


class Scene:
    """A controller with the namespace default; counts its notifications."""

    def __init__(self, client: AsyncClient, names: Names, *, wants_roots: bool = True) -> None:
        self.client = client
        self.name = names.config_map
        self.index = VolumeIndex()
        self.news = 0
        self.unknown: set[str] = set()
        self.fits_bytes = 10_000
        roots = RootVolumes(
            client,
            self.index,
            namespace="default",
            provisioner="p",
            release=_nobody_uses,
            wanted=wants_roots,
        )
        self.controller = TunnelTargetsController(
            client,
            self.index,
            roots,
            names=replace(names, namespace="default"),
            base_port=20490,
            changed=self._count,
            reports=TargetsReports(unknown_ports=self._note_unknown, check_size=self._check_size),
        )

    def _note_unknown(self, volumes: Sequence[Volume]) -> None:
        self.unknown = {volume.name for volume in volumes}

    def _check_size(self, name: str, _uid: str, data: Mapping[str, str]) -> None:
        if len(data.get(CONFIG_MAP_KEY, "")) > self.fits_bytes:
            raise InvalidValue("does not fit", field="ConfigMap", value=name)

    def _count(self) -> None:
        self.news += 1

    async def config_map(self) -> dict[str, str]:
        found = await self.client.get(ConfigMap, self.name, namespace="default")
        return dict(found.data or {})

    async def version(self) -> str:
        found = await self.client.get(ConfigMap, self.name, namespace="default")
        return (found.metadata and found.metadata.resourceVersion) or ""

    async def ports(self) -> dict[str, int] | None:
        """The ports in the ConfigMap; None when it is missing or partly unreadable."""
        async for found in self.client.list(ConfigMap, namespace="default"):
            if found.metadata and found.metadata.name == self.name:
                try:
                    targets, rejections = parse_targets((found.data or {}).get("efs-stunnel.yaml", ""))
                except InvalidValue:
                    return None
                return None if rejections else {fs: one.port for fs, one in targets.targets.items()}
        return None


@asynccontextmanager
async def running(
    client: AsyncClient,
    *,
    volumes: tuple[Volume, ...] = (),
    names: Names = OPENSHIFT_EFS_STUNNEL,
    wants_roots: bool = True,
) -> AsyncIterator[Scene]:
    scene = Scene(client, names, wants_roots=wants_roots)
    await scene.controller.load()
    scene.index.replace_volumes(volumes)
    task = asyncio.create_task(scene.controller.run())
    try:
        yield scene
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def write(client: AsyncClient, text: str) -> None:
    """Write the ConfigMap as another client."""
    body = ConfigMap(
        metadata=ObjectMeta(name="efs-stunnel", namespace="default"), data={"efs-stunnel.yaml": text}
    )
    await client.create(body)


def document(ports: Mapping[FileSystemId, int]) -> str:
    targets = {fs: TunnelTarget(file_system_id=fs, port=port) for fs, port in ports.items()}
    return render_targets(TunnelTargets(targets=targets), last_update=datetime.now(UTC))


def volume(fs: FileSystemId, port: int) -> Volume:
    return Volume(
        name=f"pv-of-{fs}",
        uid=f"uid-of-{fs}",
        file_system_id=fs,
        nfs=NfsSource(server="127.0.0.1", path="/team/data"),
        mount_options=(f"port={port}",),
    )


async def agreed(scene: Scene, ports: dict[str, int]) -> bool:
    return await scene.ports() == ports and scene.controller.settled.is_set()


async def test_discovery_writes_the_config_map_and_root_volumes(
    kube: AsyncClient, eventually: Eventually
) -> None:
    async with running(kube) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2, "10.0.1.4")))
        await eventually(lambda: agreed(here, {"fs-1": 20490, "fs-2": 20491}))
        data = await here.config_map()
        found = await kube.get(ConfigMap, "efs-stunnel", namespace="default")
        roots = {item.metadata.name async for item in kube.list(PersistentVolume) if item.metadata}
    assert found.metadata
    assert found.metadata.labels == {"component": "efs-stunnel"}
    assert data["efs-stunnel.yaml"].startswith(
        "efs_stunnel_targets:\n  fs-1:\n    stunnel_port: 20490\n"
        "    mount_target_ip_by_subnet:\n      subnet-a: 10.0.0.4\n"
    )
    assert data["zones.yaml"] == "subnet-a: us-east-1a\n"
    assert roots == {"efs-stunnel-fs-1", "efs-stunnel-fs-2"}
    assert here.index.targets.port_of(FS2) == 20491


async def test_targets_that_do_not_fit_leave_the_config_map_as_it_is(
    kube: AsyncClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_targets, "_RETRY_SECONDS", 0.05)
    async with running(kube) as here:
        here.controller.discovered(discovery(system(FS1)))
        await eventually(lambda: agreed(here, {"fs-1": 20490}))
        here.fits_bytes = len((await here.config_map())["efs-stunnel.yaml"])
        with capture_logs() as logs:

            async def refused() -> bool:
                return "targets-not-kept" in [line["event"] for line in logs]

            here.controller.discovered(discovery(system(FS1), system(FS2)))
            await eventually(refused)
        assert await here.ports() == {"fs-1": 20490}
        here.fits_bytes *= 2
        await eventually(lambda: agreed(here, {"fs-1": 20490, "fs-2": 20491}))


async def test_ports_of_an_existing_config_map_are_kept(kube: AsyncClient, eventually: Eventually) -> None:
    await write(kube, document({FS2: 20490, FS1: 20497}))
    async with running(kube) as here:
        assert here.index.targets.port_of(FS1) == 20497
        here.controller.discovered(discovery(system(FS1), system(FS2), system(FS3)))
        await eventually(lambda: agreed(here, {"fs-1": 20497, "fs-2": 20490, "fs-3": 20491}))


async def test_ports_are_taken_from_the_config_map_of_the_older_names(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await write(kube, document({FS2: 20490, FS1: 20497}))
    async with running(kube, names=KUBE_EFS) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        await eventually(lambda: agreed(here, {"fs-1": 20497, "fs-2": 20490}))
    older = await kube.get(ConfigMap, "efs-stunnel", namespace="default")
    assert "port: 20497" in (older.data or {})["efs-stunnel.yaml"]


async def test_config_map_of_the_older_names_is_not_read_again(
    kube: AsyncClient, eventually: Eventually
) -> None:
    async with running(kube, names=KUBE_EFS) as here:
        here.controller.discovered(discovery(system(FS1)))
        await eventually(lambda: agreed(here, {"fs-1": 20490}))
    await write(kube, document({FS1: 20497, FS2: 20498}))
    async with running(kube, names=KUBE_EFS) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        await eventually(lambda: agreed(here, {"fs-1": 20490, "fs-2": 20491}))


async def test_config_map_is_written_only_on_a_change(kube: AsyncClient, eventually: Eventually) -> None:
    async with running(kube) as here:
        here.controller.discovered(discovery(system(FS1)))
        await eventually(lambda: agreed(here, {"fs-1": 20490}))
        version, news = await here.version(), here.news
        for _ in range(5):
            here.controller.reconcile_soon()
            await asyncio.sleep(0.02)
        assert (await here.version(), here.news) == (version, news)
        here.controller.discovered(discovery(system(FS1, "10.0.0.9")))

        async def is_followed() -> bool:
            return "10.0.0.9" in (await here.config_map())["efs-stunnel.yaml"]

        await eventually(is_followed)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="not YAML"),
        pytest.param("[]", id="a list"),
        pytest.param(document({FS1: 21000}), id="another port"),
        pytest.param(document({FS1: 20490, FS3: 20491}), id="additional file system"),
        pytest.param(
            document({FS1: 20490, FS2: 20491})
            .replace("20491", "20491\n    evil: 1")
            .replace("fs-2", "fs-../2"),
            id="hostile entry",
        ),
    ],
)
async def test_foreign_writes_are_reverted(kube: AsyncClient, eventually: Eventually, text: str) -> None:
    async with running(kube) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        wanted = {"fs-1": 20490, "fs-2": 20491}
        await eventually(lambda: agreed(here, wanted))
        await kube.patch(
            ConfigMap,
            "efs-stunnel",
            {"data": {"efs-stunnel.yaml": text}},
            namespace="default",
            patch_type=PatchType.MERGE,
        )
        await eventually(lambda: agreed(here, wanted))


async def test_deleted_config_map_is_recreated_with_the_same_ports(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await write(kube, document({FS1: 20497}))
    async with running(kube) as here:
        here.controller.discovered(discovery(system(FS1)))
        await eventually(lambda: agreed(here, {"fs-1": 20497}))
        await kube.delete(ConfigMap, "efs-stunnel", namespace="default")
        await eventually(lambda: agreed(here, {"fs-1": 20497}))


async def test_config_map_deleted_before_the_first_aws_answer_is_restored(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await write(kube, document({FS1: 20497, FS2: 20490}))
    async with running(kube) as here:
        await kube.delete(ConfigMap, "efs-stunnel", namespace="default")

        async def is_back() -> bool:
            return await here.ports() == {"fs-1": 20497, "fs-2": 20490}

        await eventually(is_back)
        assert not here.controller.settled.is_set()


def static(port: int, server: str = "127.0.0.1") -> Volume:
    """A manually created volume without annotation."""
    return replace(
        volume(FS1, port), name="static", file_system_id=None, nfs=NfsSource(server=server, path="/team/data")
    )


@pytest.mark.parametrize("server", ["127.0.0.1", "localhost", "127.1"])
async def test_file_system_keeps_the_port_of_a_volume_without_annotation(
    kube: AsyncClient, eventually: Eventually, server: str
) -> None:
    # The second file system has the first port. After its deletion, the first must not get that port.
    await write(kube, document({FS2: 20490}))
    async with running(kube, volumes=(static(20490, server),)) as here:
        here.controller.discovered(discovery(system(FS1)))
        await eventually(lambda: agreed(here, {"fs-1": 20491}))
        assert here.index.targets.file_system_at(20490) == FS2
        assert not here.unknown
    async with running(kube, volumes=(static(20490, server),)) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2), system(FS3)))
        await eventually(lambda: agreed(here, {"fs-1": 20491, "fs-2": 20490, "fs-3": 20492}))


async def test_port_of_an_unknown_owner_is_not_assigned_without_a_config_map(
    kube: AsyncClient, eventually: Eventually
) -> None:
    async with running(kube, volumes=(static(20490), volume(FS2, 20491))) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        await eventually(lambda: agreed(here, {"fs-1": 20492, "fs-2": 20491}))
        assert here.unknown == {"static"}


async def test_roots_of_unclear_file_systems_are_kept_when_the_config_map_is_lost(
    kube: AsyncClient, eventually: Eventually
) -> None:
    async with running(kube) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        await eventually(lambda: agreed(here, {"fs-1": 20490, "fs-2": 20491}))
    await kube.delete(ConfigMap, "efs-stunnel", namespace="default")
    volumes = tuple([read_volume(one.to_dict()) async for one in kube.list(PersistentVolume)])
    async with running(kube, volumes=volumes) as here:
        assert here.controller.expected() == {FS1, FS2}
        here.controller.discovered(discovery(system(FS3), unclear=frozenset({FS1, FS2})))
        await eventually(lambda: agreed(here, {"fs-3": 20492}))
        here.controller.discovered(discovery(system(FS1), system(FS2), system(FS3)))
        await eventually(lambda: agreed(here, {"fs-1": 20490, "fs-2": 20491, "fs-3": 20492}))


async def test_invalid_entry_does_not_change_the_ports_of_others(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await write(kube, document({FS1: 20497, FS2: 20498}).replace("20498", "'no port'"))
    with capture_logs() as logs:
        async with running(kube) as here:
            here.controller.discovered(discovery(system(FS1), system(FS2)))
            await eventually(lambda: agreed(here, {"fs-1": 20497, "fs-2": 20490}))
    assert ("target-rejected", "fs-2") in [(line["event"], line.get("entry")) for line in logs]


async def test_unreadable_config_map_is_rewritten_with_the_ports_of_the_volumes(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await write(kube, "{")
    volumes = (volume(FS1, 20495), volume(FS3, 20490))
    async with running(kube, volumes=volumes) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        await eventually(lambda: agreed(here, {"fs-1": 20495, "fs-2": 20491}))


@pytest.mark.parametrize("is_there", [False, True])
async def test_late_write_of_an_earlier_leader_keeps_its_ports(kube: AsyncClient, is_there: bool) -> None:
    if is_there:
        await write(kube, document({FS3: 20492}))
    here = Scene(kube, OPENSHIFT_EFS_STUNNEL)
    await here.controller.load()
    late = document({FS2: 20490, FS3: 20492})
    if is_there:
        await kube.patch(
            ConfigMap,
            "efs-stunnel",
            {"data": {"efs-stunnel.yaml": late}},
            namespace="default",
            patch_type=PatchType.MERGE,
        )
    else:
        await write(kube, late)
    here.controller.discovered(discovery(system(FS1), unclear=frozenset({FS2, FS3})))
    with pytest.raises(KubeConflict if is_there else KubeAlreadyExists):
        await here.controller._reconcile()
    assert await here.ports() == {"fs-2": 20490, "fs-3": 20492}
    await here.controller._reconcile()
    assert await here.ports() == {"fs-1": 20491, "fs-2": 20490, "fs-3": 20492}


async def test_late_write_seen_by_the_watch_keeps_its_ports(
    kube: AsyncClient, eventually: Eventually
) -> None:
    async with running(kube) as here:
        await write(kube, document({FS2: 20490}))

        async def is_known() -> bool:
            return here.controller.expected() == {FS2}

        await eventually(is_known)
        here.controller.discovered(discovery(system(FS1), unclear=frozenset({FS2})))
        await eventually(lambda: agreed(here, {"fs-1": 20491, "fs-2": 20490}))


async def test_port_of_a_returning_file_system_is_no_longer_reserved(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await write(kube, document({FS2: 20490}))
    async with running(kube, volumes=(static(20490),)) as here:
        here.controller.discovered(discovery(system(FS1)))
        await eventually(lambda: agreed(here, {"fs-1": 20491}))
        assert (await here.config_map())["reserved-ports.yaml"] == "fs-2: 20490\n"
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        await eventually(lambda: agreed(here, {"fs-1": 20491, "fs-2": 20490}))
        assert "reserved-ports.yaml" not in await here.config_map()


async def test_nothing_is_changed_before_the_first_aws_answer(kube: AsyncClient) -> None:
    text = document({FS1: 20490})
    await write(kube, text)
    async with running(kube) as here:
        here.controller.discovered(Discovery())
        for _ in range(5):
            here.controller.reconcile_soon()
            await asyncio.sleep(0.02)
        assert (await here.config_map())["efs-stunnel.yaml"] == text
        assert here.index.targets.port_of(FS1) == 20490
        assert not here.controller.settled.is_set()
        assert here.news == 0


async def test_file_system_of_unclear_state_is_not_changed(kube: AsyncClient, eventually: Eventually) -> None:
    async with running(kube) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        await eventually(lambda: agreed(here, {"fs-1": 20490, "fs-2": 20491}))
        before = await here.version()
        here.controller.discovered(discovery(system(FS1), unclear=frozenset({FS2})))
        await asyncio.sleep(0.1)
        assert await here.version() == before


async def test_deleted_file_system_is_removed_with_its_root(
    kube: AsyncClient, eventually: Eventually
) -> None:
    async with running(kube) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        await eventually(lambda: agreed(here, {"fs-1": 20490, "fs-2": 20491}))
        here.controller.discovered(discovery(system(FS2)))
        await eventually(lambda: agreed(here, {"fs-2": 20491}))

        async def roots() -> set[str]:
            return {
                item.metadata.name or ""
                async for item in kube.list(PersistentVolumeClaim, namespace="default")
                if item.metadata and not item.metadata.deletionTimestamp
            }

        async def is_alone() -> bool:
            return await roots() == {"efs-stunnel-fs-2"}

        await eventually(is_alone)


async def test_volume_cannot_get_a_port_while_it_is_reassigned(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(kube, document({FS1: 20490, FS2: 20491}))
    here = Scene(kube, OPENSHIFT_EFS_STUNNEL)
    await here.controller.load()
    publish, seen = here.controller._publish, list[Mapping[FileSystemId, int]]()

    async def look_and_publish(targets: TunnelTargets) -> None:
        seen.append(here.index.targets.ports)
        await publish(targets)

    monkeypatch.setattr(here.controller, "_publish", look_and_publish)
    here.controller.discovered(discovery(system(FS1), system(FS3)))
    await here.controller._reconcile()
    assert seen == [{FS1: 20490}]
    assert here.index.targets.ports == {FS1: 20490, FS3: 20491}


async def test_failed_root_volume_does_not_block_the_ports(
    kube: AsyncClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_targets, "_RETRY_SECONDS", 0.01)
    squatter = PersistentVolumeClaim.from_dict(
        {
            "metadata": {"name": "efs-stunnel-fs-1", "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "other",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
    )
    assert isinstance(squatter, PersistentVolumeClaim)
    await kube.create(squatter)
    async with running(kube) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        await eventually(lambda: agreed(here, {"fs-1": 20490, "fs-2": 20491}))
        assert here.index.targets.port_of(FS2) == 20491
        news = here.news
        await asyncio.sleep(0.2)
        # Retries do not notify claims.
        assert here.news == news
        await kube.delete(PersistentVolumeClaim, "efs-stunnel-fs-1", namespace="default")
        # As the cluster's protection controller does when no pod uses it.
        unprotected = {"metadata": {"finalizers": None}}
        await kube.patch(PersistentVolumeClaim, "efs-stunnel-fs-1", unprotected, namespace="default")

        async def has_root() -> bool:
            names = {item.metadata.name async for item in kube.list(PersistentVolume) if item.metadata}
            return names == {"efs-stunnel-fs-1", "efs-stunnel-fs-2"}

        await eventually(has_root)


async def test_ports_without_volumes_are_marked_as_unused(
    kube: AsyncClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_targets, "_RESYNC_SECONDS", 0.1)

    async def is_unused(here: Scene, text: str | None) -> bool:
        return (await here.ports()) is not None and (await here.config_map()).get(
            "unused-targets.yaml"
        ) == text

    async with running(kube, volumes=(volume(FS1, 20490),), wants_roots=False) as here:
        here.controller.discovered(discovery(system(FS1), system(FS2)))
        await eventually(lambda: is_unused(here, "- fs-2\n"))
        here.index.put_volume(volume(FS2, 20491))
        await eventually(lambda: is_unused(here, None))
        assert await here.ports() == {"fs-1": 20490, "fs-2": 20491}
        here.index.drop_volume(volume(FS2, 20491))
        await eventually(lambda: is_unused(here, "- fs-2\n"))
        assert await here.ports() == {"fs-1": 20490, "fs-2": 20491}
        assert [item async for item in kube.list(PersistentVolume)] == []


async def test_port_opens_before_its_first_volume_is_created(
    kube: AsyncClient, eventually: Eventually
) -> None:
    async with running(kube, wants_roots=False) as here:
        here.controller.discovered(discovery(system(FS1)))
        await eventually(lambda: agreed(here, {"fs-1": 20490}))
        assert here.index.targets.unused == {FS1}
        here.index.expect_volume(volume(FS1, 20490))

        async def is_open() -> bool:
            return "unused-targets.yaml" not in await here.config_map()

        await eventually(is_open)


async def test_all_ports_stay_open_for_root_volumes(kube: AsyncClient, eventually: Eventually) -> None:
    async with running(kube) as here:
        here.controller.discovered(discovery(system(FS1)))
        await eventually(lambda: agreed(here, {"fs-1": 20490}))
        assert "unused-targets.yaml" not in await here.config_map()


@pytest.mark.parametrize("is_new", [False, True])
async def test_port_of_a_volume_opens_while_aws_does_not_answer(
    kube: AsyncClient, eventually: Eventually, *, is_new: bool
) -> None:
    metadata = ObjectMeta(name=OPENSHIFT_EFS_STUNNEL.config_map, namespace="default")
    data = {"efs-stunnel.yaml": document({FS1: 20490, FS2: 20491}), "unused-targets.yaml": "- fs-1\n- fs-2\n"}
    await kube.create(ConfigMap(metadata=metadata, data=data))
    one = volume(FS1, 20490)
    async with running(kube, volumes=() if is_new else (one,), wants_roots=False) as here:
        here.controller.reconcile_soon()

        async def has_reconciled() -> bool:
            return not here.controller._due.is_set()

        async def is_open() -> bool:
            return (await here.config_map()).get("unused-targets.yaml") == "- fs-2\n"

        if is_new:
            await eventually(has_reconciled)
            here.index.expect_volume(one)
            # At once, not with what the watch reports next.
            assert not await has_reconciled()
        await eventually(is_open)
