"""The IDs of snapshots: what is written is read again, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.copies import SNAPSHOTS, CopySource, FileOwner
from kube_efs.model.csi.errors import VolumeMissing
from kube_efs.model.csi.snapshots import parse_snapshot_id, render_snapshot_id, snapshot_location
from kube_efs.model.efs.ids import FileSystemId

FS = FileSystemId("fs-0123456789abcdef0")
_IDS = st.integers(0, 2**32 - 2)


@given(name=st.text(min_size=1, max_size=150), owner=st.none() | st.builds(FileOwner, uid=_IDS, gid=_IDS))
def test_id_of_every_name_is_read_again(name: str, owner: FileOwner | None) -> None:
    source = CopySource(location=snapshot_location(FS, name), owner=owner)
    assert parse_snapshot_id(render_snapshot_id(source)) == source


def test_id_is_readable() -> None:
    source = CopySource(location=snapshot_location(FS, "snapshot-1"), owner=FileOwner(uid=7, gid=8))
    assert render_snapshot_id(source) == f"{FS}:/{SNAPSHOTS}/snapshot-1:7:8"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "snap-0123",
        f"{FS}",
        f"{FS}:/{SNAPSHOTS}",
        f"{FS}:/{SNAPSHOTS}/",
        f"{FS}:/{SNAPSHOTS}/a/b",
        f"{FS}:/{SNAPSHOTS}/..",
        f"{FS}:/{SNAPSHOTS}/a:7",
        f"{FS}:/{SNAPSHOTS}/a:7:8:9",
        f"{FS}:/other/a",
        f"{FS}:/a/{SNAPSHOTS}/b",
        f"efs:{FS}:/{SNAPSHOTS}/a",
    ],
)
def test_other_directories_are_not_snapshots(text: str) -> None:
    with pytest.raises(VolumeMissing, match="is not a snapshot of this driver"):
        parse_snapshot_id(text)
