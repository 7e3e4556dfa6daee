import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unmounting import unmount

from kube_efs_lab.csi_calls import CsiCalls
from tinykube.errors import InvalidValue, NotYet
from tinykube.kubelet.cluster import BoundVolume, DriverTerms
from tinykube.kubelet.csi_volumes import CsiVolumes
from tinykube.kubelet.drivers import Driver, Drivers
from tinykube.kubelet.host_folders import HostFolders
from tinykube.kubelet.nfs import FolderNfs
from tinykube.kubelet.pods import (
    AccountToken,
    ClaimSource,
    EmptyDir,
    Files,
    HostPath,
    Nfs,
    Pod,
    PodFields,
    Projected,
    Store,
    Unsupported,
    Volume,
)
from tinykube.kubelet.syscalls import MountFlag, mount
from tinykube.kubelet.volume_makers import Mounted, VolumeMaker
from tinykube.kubelet.volumes import NfsVolumes, ProjectedVolumes, Volumes, remove_tree, standard_makers

POD = Pod(namespace="team", name="web", uid="u")


class Contents:
    """An API with one ConfigMap, and one claim that is bound to what is given."""

    def __init__(self, bound: BoundVolume | None = None) -> None:
        self.bound = bound

    async def contents(self, namespace: str, store: Store, name: str) -> Mapping[str, bytes] | None:
        return {"a": b"1", "b": b"2"} if (namespace, name) == ("team", "config") else None

    async def token(self, pod: Pod, wanted: AccountToken) -> str:
        return f"{pod.service_account} for {wanted.seconds} s at {wanted.audience or 'the API server'}"

    async def bound_volume(self, namespace: str, claim_name: str) -> BoundVolume:
        if self.bound is None:
            raise NotYet(f'persistentvolumeclaim "{claim_name}" is not bound')
        return self.bound

    async def driver_terms(self, driver: str) -> DriverTerms:
        return DriverTerms(attaches=False)


class NoBook:
    async def add(self, driver: Driver) -> None:
        raise AssertionError("no driver is registered here")

    async def remove(self, name: str) -> None:
        raise AssertionError("no driver is registered here")


class Exports:
    def __init__(self, folder: Path | None) -> None:
        self.root = folder

    async def folder(self, server: str, port: int | None, path: str) -> Path | None:
        return None if self.root is None or port != 20490 else self.root / path.lstrip("/")


def volumes(cluster: Any = None, exports: Path | None = None) -> Volumes:
    cluster = cluster or Contents()
    host, calls = HostFolders(), CsiCalls()
    csi = CsiVolumes(cluster, calls, Drivers(Path("/nowhere"), calls, NoBook(), host), host)
    return Volumes(standard_makers(cluster, FolderNfs(Exports(exports)), csi, host))


async def set_up(source: Any, directory: Path, pod: Pod = POD, **parts: Any) -> Mounted:
    return await volumes(**parts).set_up(pod, Volume(name="v", source=source), directory)


async def test_empty_dir_is_open_to_all_and_goes_with_its_pod(tmp_path: Path) -> None:
    pod = Pod(namespace="n", name="p", uid="u", volumes=(Volume(name="v", source=EmptyDir()),))
    mounted = await set_up(EmptyDir(), tmp_path / "pod", pod)
    assert stat.S_IMODE(mounted.path.stat().st_mode) == 0o777
    (mounted.path / "file").touch()
    await volumes().tear_down(pod, tmp_path / "pod")
    assert not mounted.path.exists()


@pytest.mark.parametrize(
    "source",
    [
        Files(store=Store.CONFIG_MAP, name="none", paths={"a": "a"}),
        Files(store=Store.CONFIG_MAP, name="config", paths={"none": "a"}),
    ],
    ids=["no such object", "no such key"],
)
async def test_files_that_are_not_there_yet(tmp_path: Path, source: Files) -> None:
    with pytest.raises(NotYet, match="has not all of the keys"):
        await set_up(Projected(sources=(source,)), tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        pytest.param("", "directory", "", id="anything"),
        pytest.param("Directory", "directory", "", id="directory"),
        pytest.param("DirectoryOrCreate", "new/deep", "", id="directory is made"),
        pytest.param("", "none", "is not a file or directory", id="nothing there"),
        pytest.param("Directory", "file", "is not a Directory", id="file for directory"),
    ],
)
async def test_host_path(tmp_path: Path, kind: str, name: str, text: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    source = HostPath(path=str(tmp_path / name), kind=kind)
    if not text:
        assert (await set_up(source, tmp_path / "pod")).path.exists()
        return
    with pytest.raises(NotYet) as caught:
        await set_up(source, tmp_path / "pod")
    assert caught.value.problem == f"hostPath type check failed: {tmp_path / name} {text}"


async def test_nfs_is_the_exported_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    source = Nfs(server="127.0.0.1", path="/data", options=("nfsvers=4.1,port=20490",), read_only=True)
    mounted = await set_up(source, tmp_path / "pod", exports=tmp_path)
    assert mounted == Mounted(path=tmp_path / "data", read_only=True)


async def test_export_may_lie_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real" / "data").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    source = Nfs(server="127.0.0.1", path="/data", options=("port=20490",))
    mounted = await set_up(source, tmp_path / "pod", exports=tmp_path / "link")
    assert mounted.path == tmp_path / "link" / "data"


async def test_claim_brings_its_volumes_group(tmp_path: Path) -> None:
    export = Nfs(server="127.0.0.1", path="/", options=("port=20490",))
    cluster = Contents(BoundVolume(name="vol", source=export, gid=5000))
    mounted = await set_up(
        ClaimSource(claim_name="data", read_only=True), tmp_path / "pod", cluster=cluster, exports=tmp_path
    )
    assert (mounted.groups, mounted.read_only) == ((5000,), True)


@pytest.mark.parametrize(
    ("path", "port", "text"),
    [
        pytest.param("/none", 20490, "reason given by server: No such file or directory", id="no directory"),
        pytest.param("/file", 20490, "reason given by server: Not a directory", id="a file"),
        pytest.param("/link", 20490, "reason given by server: Not a directory", id="a link"),
        pytest.param("/link/ssl", 20490, "reason given by server: Not a directory", id="below a link"),
        pytest.param("/", 20491, "mount.nfs: Connection refused for 127.0.0.1:/ on", id="no server"),
    ],
)
async def test_nfs_fails_in_the_words_of_mount(tmp_path: Path, path: str, port: int, text: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(NotYet) as caught:
        await set_up(
            Nfs(server="127.0.0.1", path=path, options=(f"port={port}",)), tmp_path / "pod", exports=tmp_path
        )
    assert caught.value.problem.startswith("mount failed: exit status 32\nMounting command: mount\n")
    assert text in caught.value.problem


async def test_projected_files_come_from_everywhere(tmp_path: Path) -> None:
    source = Projected(
        sources=(
            AccountToken(path="token", seconds=3607),
            AccountToken(path="other-token", audience="vault"),
            Files(store=Store.CONFIG_MAP, name="config", paths={"a": "ca.crt"}),
            PodFields(paths={"namespace": "metadata.namespace"}),
        ),
        mode=0o640,
    )
    mounted = await set_up(source, tmp_path)
    assert mounted.read_only
    files = {path.relative_to(mounted.path): path for path in mounted.path.rglob("*") if path.is_file()}
    assert {str(name): path.read_text() for name, path in files.items()} == {
        "token": "default for 3607 s at the API server",
        "other-token": "default for 3600 s at vault",
        "ca.crt": "1",
        "namespace": "team",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o640}


@pytest.mark.parametrize(
    "source",
    [AccountToken(path="../token"), PodFields(paths={"/etc/passwd": "metadata.name"})],
    ids=["token", "field"],
)
async def test_projected_files_stay_in_their_volume(tmp_path: Path, source: Any) -> None:
    with pytest.raises(InvalidValue, match="is not a name of a file"):
        await set_up(Projected(sources=(source,)), tmp_path)


async def test_secret_has_all_its_keys_as_files(tmp_path: Path) -> None:
    mounted = await set_up(Projected(sources=(Files(store=Store.SECRET, name="config"),)), tmp_path)
    assert {path.name: path.read_text() for path in mounted.path.iterdir()} == {"a": "1", "b": "2"}


async def test_optional_secret_that_is_missing_is_an_empty_directory(tmp_path: Path) -> None:
    source = Files(store=Store.SECRET, name="none", optional=True)
    mounted = await set_up(Projected(sources=(source,)), tmp_path)
    assert list(mounted.path.iterdir()) == []


async def test_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="is no kind of volume that this node has") as caught:
        await set_up(Unsupported(kind="csi"), tmp_path)
    assert caught.value.value == "csi"


@pytest.mark.parametrize(
    "maker", [ProjectedVolumes(Contents()), NfsVolumes(FolderNfs(Exports(None)))], ids=["files", "nfs"]
)
async def test_makers_refuse_what_is_not_theirs(tmp_path: Path, maker: VolumeMaker) -> None:
    with pytest.raises(InvalidValue):
        await maker.set_up(POD, EmptyDir(), tmp_path)


def test_remove_tree_follows_no_link(tmp_path: Path) -> None:
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    kept.mkdir()
    (kept / "file").touch()
    removed.mkdir()
    (removed / "link").symlink_to(kept)
    remove_tree(removed)
    assert not removed.exists()
    assert (kept / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting is root's")
def test_remove_tree_leaves_alone_what_has_a_folder_bound_in_it(tmp_path: Path) -> None:
    data, directory = tmp_path.resolve() / "data", tmp_path.resolve() / "pod"
    target = directory / "volume"
    for folder in (data, target):
        folder.mkdir(parents=True)
    (data / "file").touch()
    mount(str(data), str(target), flags=MountFlag.BIND)
    try:
        remove_tree(directory)
        assert (data / "file").exists()
    finally:
        unmount(target)
    remove_tree(directory)
    assert not directory.exists()
    assert (data / "file").exists()
