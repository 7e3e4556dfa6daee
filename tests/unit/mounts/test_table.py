"""What readings of the mount table say."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kube_efs.mounts.mountinfo import MountEntry
from kube_efs.mounts.table import mount_points, mounted_at


def entry(place: str, source: str = "127.0.0.1:/") -> MountEntry:
    return MountEntry(
        mount_id=1,
        parent_id=1,
        device="0:50",
        root="/",
        mount_point=Path(place),
        options=("rw",),
        file_system_type="nfs4",
        source=source,
        super_options=(),
    )


def readings(*tables: Sequence[str]) -> Callable[[], Sequence[MountEntry]]:
    """Each reading gives the next table; the last one again and again."""
    left = [[entry(place) for place in table] for table in tables]
    return lambda: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize(
    ("table", "is_there"),
    [
        pytest.param(["/a", "/b"], True, id="there"),
        pytest.param([], False, id="nothing anywhere"),
        pytest.param(["/a/b", "/"], False, id="above and below only"),
    ],
)
async def test_only_what_is_mounted_at_the_target_itself_counts(table: list[str], is_there: bool) -> None:
    found = await mounted_at(Path("/a"), readings(table))
    assert (found is not None) == is_there


async def test_of_several_mounts_the_last_is_seen() -> None:
    table = [entry("/a", "first"), entry("/a", "last"), entry("/b", "other")]
    found = await mounted_at(Path("/a"), lambda: table)
    assert found is not None
    assert found.source == "last"


async def test_mount_points_are_those_of_all_readings() -> None:
    read = readings(["/a", "/b"], ["/a"], ["/c"], ["/d"])
    assert await mount_points(read, readings=3, pause_seconds=0) == {Path("/a"), Path("/b"), Path("/c")}


@pytest.mark.parametrize("mark", ["//deleted", " (deleted)"])
async def test_a_mount_point_that_was_removed_elsewhere_is_still_one(mark: str) -> None:
    points = await mount_points(readings([f"/pods/x{mark}"]), readings=1)
    assert Path("/pods/x") in points
    assert Path(f"/pods/x{mark}") in points  # a folder may be called so
