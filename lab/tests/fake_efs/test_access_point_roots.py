"""Descriptions of access points, and how their root directories are found or made."""

import os
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from fake_efs.access_points import Creation, EmbeddedAccessPoint, ensure_root, parse_access_point
from fake_efs.errors import InvalidValue
from fake_efs.nfs_server import PosixUser

ACCESS_POINT = EmbeddedAccessPoint(
    access_point_id="fsap-01234567",
    arn="arn:aws:elasticfilesystem:us-east-1:123456789012:access-point/fsap-01234567",
    file_system_id="fs-01234567",
    root=PurePosixPath("/base/deep/root"),
)
MADE = replace(ACCESS_POINT, creation=Creation(owner=PosixUser(uid=1, gid=2), mode=0o2710))
DESCRIPTION: dict[str, Any] = {
    "AccessPointId": ACCESS_POINT.access_point_id,
    "AccessPointArn": ACCESS_POINT.arn,
    "FileSystemId": ACCESS_POINT.file_system_id,
    "LifeCycleState": "available",
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, replace(ACCESS_POINT, root=PurePosixPath("/")), id="nothing but ids"),
        pytest.param({"RootDirectory": {"Path": "/base/deep/root"}}, ACCESS_POINT, id="a root"),
        pytest.param(
            {
                "PosixUser": {"Uid": 0, "Gid": 4294967295, "SecondaryGids": [7, 8]},
                "RootDirectory": {
                    "Path": "/base/deep/root",
                    "CreationInfo": {"OwnerUid": 1, "OwnerGid": 2, "Permissions": "2710"},
                },
            },
            replace(MADE, user=PosixUser(uid=0, gid=4294967295)),
            id="everything",
        ),
    ],
)
def test_descriptions_are_read(fields: dict[str, Any], expected: EmbeddedAccessPoint) -> None:
    assert parse_access_point({**DESCRIPTION, **fields}) == expected


def test_a_root_that_leads_elsewhere_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"root directory: '/a/\.\./b' is not a plain absolute path"):
        parse_access_point({**DESCRIPTION, "RootDirectory": {"Path": "/a/../b"}})


async def test_a_missing_root_is_made_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        root = await ensure_root(tmp_path, MADE)
    finally:
        os.umask(before)
    found = root.path.stat()
    assert root.path == tmp_path / "base/deep/root"
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777, found.st_ino) == (1, 2, 0o2710, root.inode)
    parents = [folder.stat() for folder in (tmp_path / "base", tmp_path / "base/deep")]
    assert [(parent.st_uid, parent.st_mode & 0o7777) for parent in parents] == [(0, 0o755)] * 2
    assert await ensure_root(tmp_path, MADE) == root
    assert await ensure_root(tmp_path, ACCESS_POINT) == root


async def test_the_file_systems_own_root_is_always_there(tmp_path: Path) -> None:
    root = await ensure_root(tmp_path, replace(ACCESS_POINT, root=PurePosixPath("/")))
    assert root.path == tmp_path


async def test_without_creation_info_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    with pytest.raises(InvalidValue) as caught:
        await ensure_root(tmp_path, ACCESS_POINT)
    assert str(caught.value) == (
        "root directory of fsap-01234567: '/base/deep/root' does not exist, and has no CreationInfo"
    )
    assert list((tmp_path / "base").iterdir()) == []


@pytest.mark.parametrize("depth", ["base", "base/deep", "base/deep/root"])
async def test_no_symbolic_link_is_followed(tmp_path: Path, depth: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    link = folder / depth
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(InvalidValue, match=f"is not a directory at {link.name}"):
        await ensure_root(folder, MADE)
    assert list(outside.iterdir()) == []


async def test_what_the_system_says_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"cannot be used .*No such file or directory"):
        await ensure_root(tmp_path / "gone", MADE)
