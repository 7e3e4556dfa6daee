"""Parsing of mounts as the kernel writes them."""

import os
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unmounting import unmount

from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.errors import InvalidValue, PlatformError
from kube_efs.mounts import mountinfo
from kube_efs.mounts.mountinfo import (
    MOUNTINFO,
    Export,
    MountEntry,
    export_of,
    find_exports,
    has_changed,
    parse_mountinfo,
    read_mountinfo,
    read_once,
)

SERVER = "fs-1.efs.us-east-1.amazonaws.com"
NFS = (
    f"523 510 0:58 / /persistentvolumes rw,relatime shared:7 master:2 - nfs4 {SERVER}:/a "
    "rw,vers=4.1,rsize=1048576,addr=10.0.0.7"
)
ROOT = "510 400 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/x:/y"


def test_lines_of_the_kernel_are_parsed() -> None:
    assert parse_mountinfo(f"{ROOT}\n{NFS}\n") == (
        MountEntry(
            mount_id=510,
            parent_id=400,
            device="0:50",
            root="/",
            mount_point=Path("/"),
            options=("rw", "relatime"),
            file_system_type="overlay",
            source="overlay",
            super_options=("rw", "lowerdir=/x:/y"),
        ),
        MountEntry(
            mount_id=523,
            parent_id=510,
            device="0:58",
            root="/",
            mount_point=Path("/persistentvolumes"),
            options=("rw", "relatime"),
            file_system_type="nfs4",
            source=f"{SERVER}:/a",
            super_options=("rw", "vers=4.1", "rsize=1048576", "addr=10.0.0.7"),
        ),
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "garbage",
        "x 400 0:50 / / rw - tmpfs none rw",
        "510 400 0:50 / / rw tmpfs none rw",
        "510 400 0:50 / / rw - tmpfs none",
        "510 400 0:50 / / rw - tmpfs none rw more",
        "510 400 0:50 / /",
        "510 400 0:50 / / rw -",
    ],
)
def test_invalid_line_is_ignored(line: str) -> None:
    assert [entry.mount_id for entry in parse_mountinfo(f"{ROOT}\n{line}\n{NFS}\n")] == [510, 523]


def test_empty_source_is_valid() -> None:
    (entry,) = parse_mountinfo("510 400 0:50 / /x rw - tmpfs  rw\n")
    assert (entry.source, entry.super_options) == ("", ("rw",))


def test_escaped_characters_are_decoded() -> None:
    (entry,) = parse_mountinfo(r"1 2 0:5 /r\011 /a\040b\012c\134d\043 rw - nfs4 s:/x\040y rw" + "\n")
    assert (entry.root, entry.mount_point, entry.source) == ("/r\t", Path("/a b\nc\\d#"), "s:/x y")


def test_invalid_escape_is_kept() -> None:
    (entry,) = parse_mountinfo(r"1 2 0:5 / /a\04 rw - nfs4 s:/\134040\777 rw")
    assert (entry.mount_point, entry.source) == (Path(r"/a\04"), r"s:/\040\777")


def test_unicode_line_separators_do_not_split_lines() -> None:
    (entry,) = parse_mountinfo("1 2 0:5 / /a\x0b\u2028\x85b rw - nfs4 s:/ rw\n")
    assert entry.mount_point == Path("/a\x0b\u2028\x85b")


_TEXT = st.text(st.characters(codec=None, exclude_characters="\0"), min_size=1).map(
    lambda text: os.fsdecode(text.encode(errors="replace"))
)
_PATHS = st.lists(_TEXT.map(lambda text: text.replace("/", "_")), max_size=4).map(
    lambda names: "/" + "/".join(name for name in names if name not in {".", ".."})
)
_WORDS = st.lists(st.text(string.ascii_lowercase + "=", min_size=1), min_size=1, max_size=3).map(tuple)
_ENTRIES = st.builds(
    MountEntry,
    mount_id=st.integers(0, 2**31),
    parent_id=st.integers(0, 2**31),
    device=st.just("0:58"),
    root=_PATHS,
    mount_point=_PATHS.map(Path),
    options=_WORDS,
    file_system_type=st.sampled_from(["nfs4", "fuse.s3fs"]),
    source=_TEXT | st.just(""),
    super_options=_WORDS,
)


def _escaped(text: str) -> str:
    """Escape a text as seq_escape of the kernel."""
    return "".join(f"\\{ord(letter):03o}" if letter in " \t\n\\#" else letter for letter in text)


def _rendered(entry: MountEntry, optional: list[str]) -> str:
    words = [
        str(entry.mount_id),
        str(entry.parent_id),
        entry.device,
        _escaped(entry.root),
        _escaped(str(entry.mount_point)),
        ",".join(entry.options),
        *optional,
        "-",
        entry.file_system_type,
        _escaped(entry.source),
        ",".join(entry.super_options),
    ]
    return " ".join(words) + "\n"


@given(st.lists(_ENTRIES, max_size=4), st.lists(st.sampled_from(["shared:1", "master:2", "unbindable"])))
def test_any_line_of_the_kernel_is_parsed(entries: list[MountEntry], optional: list[str]) -> None:
    text = "".join(_rendered(entry, optional) for entry in entries)
    assert parse_mountinfo(text) == tuple(entries)


@given(st.text())
def test_no_text_raises_an_error(text: str) -> None:
    parse_mountinfo(text)


def test_own_table_has_root_and_proc() -> None:
    found = {entry.mount_point: entry.file_system_type for entry in read_mountinfo()}
    assert Path("/") in found
    assert found[Path("/proc")] == "proc"


def test_bytes_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_bytes(b"1 2 0:5 / /a\xff rw - nfs4 s:/ rw\n")
    (entry,) = read_mountinfo(file)
    assert os.fsencode(entry.mount_point) == b"/a\xff"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_kernel_reports_a_change_of_the_table(tmp_path: Path) -> None:
    with MOUNTINFO.open("rb", buffering=0) as table:
        before = table.readall()
        subprocess.run(["mount", "-t", "tmpfs", "none", str(tmp_path)], check=True)
        unmount(tmp_path)
        assert has_changed(table)
    assert before


def test_unchanged_table_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_bytes(b"1 2 0:5 / /a rw - nfs4 s:/ rw\n")
    assert read_once(file) == (file.read_bytes(), True)


def _lines(*places: str) -> bytes:
    return b"".join(f"{place[1:]} 0 0:5 / {place} rw - nfs4 s:/ rw\n".encode() for place in places)


@pytest.mark.parametrize(
    ("readings", "shown"),
    [
        pytest.param([(("/1",), True), (("/1", "/2"), True)], ["/1"], id="complete at once"),
        pytest.param([(("/1",), False), (("/1", "/2"), True)], ["/1", "/2"], id="mount missed"),
        pytest.param([(("/1", "/2"), False), (("/1",), True)], ["/1"], id="mount removed"),
        pytest.param(
            [(("/1", "/2", "/3"), False), (("/2", "/1"), False)], ["/3", "/2", "/1"], id="never complete"
        ),
    ],
)
def test_table_is_read_until_it_is_complete(
    readings: list[tuple[tuple[str, ...], bool]], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [(_lines(*places), is_whole) for places, is_whole in readings]
    monkeypatch.setattr(mountinfo, "read_once", lambda _: left.pop(0) if len(left) > 1 else left[0])
    assert [str(entry.mount_point) for entry in read_mountinfo()] == shown


def test_missing_proc_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PlatformError) as caught:
        read_mountinfo(tmp_path / "none")
    assert str(caught.value) == (
        f"mounts: '{tmp_path}/none' cannot be read (No such file or directory); mount /proc"
    )


def mounted(source: str, mount_point: str = "/mnt/x") -> MountEntry:
    (entry,) = parse_mountinfo(f"1 2 0:5 / {mount_point} rw - nfs4 {source} rw")
    return entry


@pytest.mark.parametrize(
    ("source", "directory"),
    [
        (f"{SERVER}:/", "/"),
        (f"{SERVER}:/persistentvolumes", "/persistentvolumes"),
        (f"{SERVER}:/a//b/", "/a/b"),
        (f"{SERVER}://a", "/a"),
        (f"{SERVER}:/./a/../b", "/b"),
        (f"{SERVER}:/../..", "/"),
        (f"{SERVER}:/x:/y", "/x:/y"),
    ],
)
def test_exports_of_the_server_are_found(source: str, directory: str) -> None:
    entry = mounted(source)
    wanted = Export(server=SERVER, directory=parse_directory(directory), mount_point=Path("/mnt/x"))
    assert find_exports([entry], SERVER) == (wanted,)
    assert export_of(entry) == wanted


@pytest.mark.parametrize(
    "source",
    [
        f"{SERVER}.cn:/",
        f"x{SERVER}:/",
        SERVER,
        f"{SERVER}:",
        f"{SERVER}:a",
        f"{SERVER}/a",
        SERVER.upper() + ":/",
        "127.0.0.1:/",
        f"127.0.0.1:/{SERVER}:/",
        "overlay",
    ],
)
def test_exports_of_other_servers_are_ignored(source: str) -> None:
    assert find_exports([mounted(source)], SERVER) == ()


def test_exports_are_in_the_order_of_the_mounts() -> None:
    entries = [mounted(f"{SERVER}:/b", "/2"), mounted("overlay", "/3"), mounted(f"{SERVER}:/a", "/1")]
    found = find_exports(entries, SERVER)
    assert [str(export.mount_point) for export in found] == ["/2", "/1"]


@pytest.mark.parametrize("host", ["[fd00::1]", "127.0.0.1", "efs.local"])
def test_server_can_be_an_address(host: str) -> None:
    wanted = Export(server=host, directory=Directory(("a",)), mount_point=Path("/mnt/x"))
    assert export_of(mounted(f"{host}:/a")) == wanted
    assert find_exports([mounted(f"{host}:/a")], host) == (wanted,)


@pytest.mark.parametrize("source", ["overlay", "/dev/sda1", "", "tmpfs:x"])
def test_source_without_a_server_is_not_an_export(source: str) -> None:
    assert export_of(mounted(source)) is None


def test_path_that_no_volume_can_have_is_an_error() -> None:
    with pytest.raises(InvalidValue) as caught:
        export_of(mounted(rf"{SERVER}:/a\012b"))
    assert (caught.value.field, caught.value.value) == ("mount /mnt/x", "/a\nb")
