"""The volumes of a pod, as far as no other test of the kubelet has them."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import PodSpec, Volume
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Secret
from msgspec import convert
from tests.unmounting import unmount

from kube_efs_lab.csi_calls import CsiCalls
from tinykube.errors import InvalidValue, NotYet
from tinykube.kubelet.csi import CsiVolumes, Drivers
from tinykube.kubelet.nfs import FolderNfs, Nfs
from tinykube.kubelet.node import HostFolders
from tinykube.kubelet.pods import Pod
from tinykube.kubelet.syscalls import MountFlag, mount
from tinykube.kubelet.volumes import Mounted, Volumes, remove_tree

FOLDERS = HostFolders({"/var/lib/kubelet": Path("/m/k"), "/run/x": Path("/m/run")})


@pytest.mark.parametrize(
    ("there", "here"),
    [
        pytest.param("/var/lib/kubelet", "/m/k", id="the folder itself"),
        pytest.param("/var/lib/kubelet/pods/u", "/m/k/pods/u", id="what is in it"),
        pytest.param("/var/lib/kubelets", "/var/lib/kubelets", id="a name that begins like it"),
    ],
)
def test_paths_are_translated_to_and_fro(there: str, here: str) -> None:
    assert FOLDERS.here(there) == Path(here)
    assert FOLDERS.there(Path(here)) == there


class Exports:
    def __init__(self, folder: Path) -> None:
        self.root = folder

    async def folder(self, server: str, port: int | None, path: str) -> Path | None:
        return None if port != 20490 else self.root / path.lstrip("/")


async def set_up(kube: AsyncClient, directory: Path, source: Mapping[str, Any]) -> Mounted:
    host, calls = HostFolders(), CsiCalls()
    csi = CsiVolumes(calls, Drivers(kube, "n-1", Path("/nowhere"), calls, host), host)
    volumes = Volumes(kube, FolderNfs(Exports(directory)), csi, host)
    pod = Pod(namespace="default", name="web", uid="u", spec=PodSpec(containers=[]))
    return await volumes.set_up(pod, convert({"name": "v", **source}, Volume), directory)


async def test_empty_dir_is_open_to_all(kube: AsyncClient, tmp_path: Path) -> None:
    mounted = await set_up(kube, tmp_path, {"emptyDir": {}})
    assert stat.S_IMODE(mounted.path.stat().st_mode) == 0o777


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
async def test_host_path(kube: AsyncClient, tmp_path: Path, kind: str, name: str, text: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    source = {"hostPath": {"path": str(tmp_path / name), "type": kind}}
    if not text:
        assert (await set_up(kube, tmp_path, source)).path.exists()
        return
    with pytest.raises(NotYet) as caught:
        await set_up(kube, tmp_path, source)
    assert caught.value.problem == f"hostPath type check failed: {tmp_path / name} {text}"


async def test_projected_files(kube: AsyncClient, tmp_path: Path) -> None:
    sources = [
        {"configMap": {"name": "config", "items": [{"key": "a", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    volume = {"projected": {"sources": sources, "defaultMode": 0o640}}
    with pytest.raises(NotYet, match='configmap "config" has no key a'):
        await set_up(kube, tmp_path, volume)
    await kube.create(ConfigMap(metadata=ObjectMeta(name="config", namespace="default"), data={"a": "1"}))
    mounted = await set_up(kube, tmp_path, volume)
    assert mounted.read_only
    files = {path.name: path for path in mounted.path.iterdir()}
    assert {name: path.read_text() for name, path in files.items()} == {"ca.crt": "1", "n": "default"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o640}


async def test_projected_files_stay_in_their_volume(kube: AsyncClient, tmp_path: Path) -> None:
    field = {"path": "../name", "fieldRef": {"fieldPath": "metadata.name"}}
    with pytest.raises(InvalidValue, match="is not a name of a file"):
        await set_up(kube, tmp_path, {"projected": {"sources": [{"downwardAPI": {"items": [field]}}]}})


async def test_secret_has_all_its_keys_as_files(kube: AsyncClient, tmp_path: Path) -> None:
    volume = {"secret": {"secretName": "certificate"}}
    with pytest.raises(NotYet, match='secret "certificate" not found'):
        await set_up(kube, tmp_path, volume)
    meta = ObjectMeta(name="certificate", namespace="default")
    await kube.create(Secret(metadata=meta, data={"tls.key": "MQ=="}))
    mounted = await set_up(kube, tmp_path, volume)
    assert {path.name: path.read_text() for path in mounted.path.iterdir()} == {"tls.key": "1"}


async def test_optional_secret_that_is_missing_is_an_empty_directory(
    kube: AsyncClient, tmp_path: Path
) -> None:
    mounted = await set_up(kube, tmp_path, {"secret": {"secretName": "none", "optional": True}})
    assert list(mounted.path.iterdir()) == []


async def test_other_kinds_are_refused(kube: AsyncClient, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="is of no kind that this node has"):
        await set_up(kube, tmp_path, {"csi": {"driver": "d"}})


async def test_export_may_lie_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real" / "data").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    source = Nfs(server="127.0.0.1", path="/data", options=("port=20490",))
    mounted = await FolderNfs(Exports(tmp_path / "link")).mount(source, tmp_path)
    assert mounted == tmp_path / "link" / "data"


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
    source = Nfs(server="127.0.0.1", path=path, options=(f"port={port}",))
    with pytest.raises(NotYet) as caught:
        await FolderNfs(Exports(tmp_path)).mount(source, tmp_path)
    assert caught.value.problem.startswith("mount failed: exit status 32\nMounting command: mount\n")
    assert text in caught.value.problem


def test_remove_tree_follows_no_link(tmp_path: Path) -> None:
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    kept.mkdir()
    (kept / "file").touch()
    removed.mkdir()
    (removed / "link").symlink_to(kept)
    remove_tree(removed)
    assert not removed.exists()
    assert (kept / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
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
