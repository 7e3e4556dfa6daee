import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.efs.ids import FileSystemId, SubnetId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.volumes import CsiSource, Location, NfsSource, Volume, locate, unlocated_directory

FS1, FS2 = FileSystemId("fs-1"), FileSystemId("fs-2")
POINT = "fsap-0123abcd"


TARGETS = TunnelTargets(
    targets={
        FS1: TunnelTarget(
            file_system_id=FS1, port=20490, address_by_subnet={SubnetId("subnet-1"): "10.0.0.4"}
        ),
        FS2: TunnelTarget(file_system_id=FS2, port=20491),
    }
)


def nfs(path: str = "/team/data", *, server: str = "127.0.0.1") -> NfsSource:
    return NfsSource(server=server, path=path)


@pytest.mark.parametrize(
    ("options", "port"),
    [
        pytest.param((), None, id="no options"),
        pytest.param(("hard", "port=20490"), 20490, id="among other options"),
        pytest.param(("mountport=1", "nfsvers=4.1"), None, id="names with a common suffix"),
        pytest.param(("port=20490", "port=20491"), 20491, id="last of two"),
        pytest.param(("ro,port=20490",), 20490, id="in one entry with others"),
        pytest.param(("port",), None, id="no value"),
        pytest.param(("port=",), None, id="empty value"),
        pytest.param(("port=-1",), None, id="negative"),
        pytest.param(("port=2049x",), None, id="not only digits"),
        pytest.param(("port= 2049",), None, id="space"),
        pytest.param(("port=²",), None, id="digit that is not ASCII"),
        pytest.param(("port=" + "9" * 5000,), None, id="too many digits for Python"),
    ],
)
def test_volume_port_is_read_from_its_mount_options(options: tuple[str, ...], port: int | None) -> None:
    assert Volume(name="v", mount_options=options).port == port


@pytest.mark.parametrize(
    ("volume", "location"),
    [
        pytest.param(
            Volume(name="v", nfs=nfs(), file_system_id="fs-2", mount_options=("port=20490",)),
            "fs-2:/team/data",
            id="loopback: annotation takes precedence over the port",
        ),
        pytest.param(
            Volume(name="v", nfs=nfs(), mount_options=("port=20491",)),
            "fs-2:/team/data",
            id="loopback: the port without an annotation",
        ),
        pytest.param(
            Volume(name="v", nfs=nfs(), mount_options=("port=9",)), None, id="loopback: an unknown port"
        ),
        pytest.param(Volume(name="v", nfs=nfs()), None, id="loopback: neither port nor annotation"),
        pytest.param(
            Volume(name="v", nfs=nfs(), file_system_id="../fs-1"), None, id="loopback: a bad annotation"
        ),
        pytest.param(
            Volume(name="v", nfs=nfs("/", server="fs-1.efs.us-east-1.amazonaws.com")),
            "fs-1:/",
            id="DNS name of the file system",
        ),
        pytest.param(
            Volume(name="v", nfs=nfs("/a", server="us-east-1a.fs-1.efs.us-east-1.amazonaws.com")),
            "fs-1:/a",
            id="DNS name of a mount target",
        ),
        pytest.param(
            Volume(name="v", nfs=nfs("/a", server="FS-1.EFS.CN-North-1.amazonaws.com.cn")),
            "fs-1:/a",
            id="DNS name in uppercase",
        ),
        pytest.param(
            Volume(name="v", nfs=nfs("/a", server="10.0.0.4")), "fs-1:/a", id="address of a mount target"
        ),
        pytest.param(Volume(name="v", nfs=nfs("/a", server="10.0.0.5")), None, id="another address"),
        pytest.param(
            Volume(name="v", nfs=nfs("/a", server="10.0.0.5"), file_system_id="fs-2"),
            "fs-2:/a",
            id="another address with an annotation",
        ),
        pytest.param(
            Volume(name="v", nfs=nfs("/a", server="efs.example.com"), file_system_id="fs-2"),
            "fs-2:/a",
            id="a name with an annotation",
        ),
        pytest.param(
            Volume(name="v", nfs=nfs("/a", server="10.0.0.4"), file_system_id="fs-2"),
            "fs-1:/a",
            id="an address of a mount target takes precedence over the annotation",
        ),
        pytest.param(
            Volume(name="v", nfs=nfs("/a", server="fs-1.efs.example")),
            None,
            id="DNS name that is too short",
        ),
        pytest.param(
            Volume(name="v", nfs=nfs("/a", server="nas.example.org")), None, id="another NFS server"
        ),
        pytest.param(Volume(name="v", csi=CsiSource(handle="fs-1")), "fs-1:/", id="CSI handle"),
        pytest.param(
            Volume(name="v", csi=CsiSource(handle="fs-1:/team")), "fs-1:/team", id="CSI handle with a path"
        ),
        pytest.param(
            Volume(name="v", csi=CsiSource(handle="efs:fs-1:/team")),
            "fs-1:/team",
            id="CSI handle with a prefix",
        ),
        pytest.param(
            Volume(name="v", csi=CsiSource(handle="fs-1::")), "fs-1:/", id="CSI handle with empty fields"
        ),
        pytest.param(
            Volume(name="v", csi=CsiSource(handle="fs-1::fsap-1")), None, id="CSI handle with an access point"
        ),
        pytest.param(
            Volume(name="v", csi=CsiSource(handle="vol-0123")), None, id="CSI handle of another driver"
        ),
        pytest.param(Volume(name="v"), None, id="neither NFS nor CSI"),
    ],
)
def test_volume_location_is_found(volume: Volume, location: str | None) -> None:
    found = locate(volume, TARGETS)
    assert (str(found) if found else None) == location


@pytest.mark.parametrize(
    ("source", "of_driver", "of_any_driver"),
    [
        pytest.param(None, False, False, id="not a CSI volume"),
        pytest.param(CsiSource(handle="fs-0123abcd:/a"), True, True, id="CSI driver"),
        pytest.param(CsiSource(driver="other", handle="fs-0123abcd:/a"), False, True, id="another driver"),
        pytest.param(CsiSource(handle="fs-0123abcd:/a:b:c"), False, False, id="malformed"),
    ],
)
def test_handle_is_that_of_a_volume_of_the_driver(
    source: CsiSource | None, *, of_driver: bool, of_any_driver: bool
) -> None:
    handle = parse_volume_handle("fs-0123abcd:/a")
    volume = Volume(name="v", csi=source)
    assert volume.handle == (handle if of_driver else None)
    assert volume.entrance == (handle if of_any_driver else None)


@pytest.mark.parametrize(
    ("handle", "options", "entrance"),
    [
        pytest.param("fs-0123abcd", ("tls", f"accesspoint={POINT}"), f"::{POINT}", id="an option"),
        pytest.param("fs-0123abcd", (f"tls, AccessPoint={POINT.upper()}",), f"::{POINT}", id="as nodes read"),
        pytest.param("fs-0123abcd:/a", (f"accesspoint={POINT}",), f":/a:{POINT}", id="path below its root"),
        pytest.param(
            "efs:fs-0123abcd:/a/./b", (f"accesspoint={POINT}",), f":/a/b:{POINT}", id="without a base"
        ),
        pytest.param(
            f"fs-0123abcd::{POINT}", ("accesspoint=fsap-89abcdef",), f"::{POINT}", id="beside the handle's"
        ),
        pytest.param("fs-0123abcd:/a", ("accesspoint=x",), ":/a", id="malformed"),
        pytest.param("fs-0123abcd:/a", ("port=1", f"accesspoint={POINT}"), f":/a:{POINT}", id="refused"),
        pytest.param(
            "fs-0123abcd", ('context="a,b"', f"accesspoint={POINT}"), f"::{POINT}", id="refused quotes"
        ),
        pytest.param(
            "fs-0123abcd", (f'x"y"z,accesspoint="{POINT}"',), f"::{POINT}", id="its own quotes are allowed"
        ),
        pytest.param("fs-0123abcd:/a", (f'accesspoint="{POINT}', "tls"), ":/a", id="its quotes do not end"),
    ],
)
def test_access_point_in_the_mount_options_is_the_entrance(
    handle: str, options: tuple[str, ...], entrance: str
) -> None:
    volume = Volume(name="v", csi=CsiSource(handle=handle), mount_options=options)
    assert str(volume.entrance) == f"efs:fs-0123abcd{entrance}"
    assert volume.handle == volume.entrance
    has_access_point = POINT in entrance
    assert (locate(volume, TARGETS) is None) is has_access_point


@pytest.mark.parametrize(
    ("server", "location"),
    [
        pytest.param("efs.example.com", "fs-2:/a", id="custom name"),
        pytest.param("10.0.0.4", "fs-2:/a", id="takes precedence over the address of a mount target"),
        pytest.param("EFS.example.com", None, id="names are not normalized"),
        pytest.param("efs.example.com.cn", None, id="longer name"),
        pytest.param("fs-1.efs.us-east-1.amazonaws.com", "fs-1:/a", id="names of AWS need no setting"),
    ],
)
def test_settings_map_servers_to_file_systems(server: str, location: str | None) -> None:
    servers = {"efs.example.com": FS2, "10.0.0.4": FS2}
    found = locate(Volume(name="v", nfs=nfs("/a", server=server)), TARGETS, servers)
    assert (str(found) if found else None) == location


@pytest.mark.parametrize(
    ("path", "is_child"),
    [("/pvs/a", True), ("/pvs/a/b", False), ("/pvs", False), ("/", False), ("/pvs2", False), ("/b/a", False)],
)
def test_child_is_directly_inside_its_parent(path: str, is_child: bool) -> None:
    base = Location(file_system_id=FS1, directory=parse_directory("/pvs"))
    location = Location(file_system_id=FS1, directory=parse_directory(path))
    assert location.is_child_of(base) is is_child
    assert not Location(file_system_id=FS2, directory=parse_directory(path)).is_child_of(base)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/team/data/", "/team/data"),
        ("//team//data", "/team/data"),
        ("/team/./data/.", "/team/data"),
        ("/team/other/../data", "/team/data"),
        ("/../team/data", "/team/data"),
    ],
)
def test_path_is_normalized_as_the_kernel_does(written: str, meant: str) -> None:
    volume = Volume(name="v", nfs=nfs(written), file_system_id="fs-1")
    assert str(locate(volume, TARGETS)) == f"fs-1:{meant}"


@given(st.text(), st.text(), st.text(), st.text())
def test_any_volume_is_located_without_an_error(server: str, path: str, annotation: str, handle: str) -> None:
    locate(Volume(name="v", nfs=nfs(path), file_system_id=annotation), TARGETS)
    locate(Volume(name="v", nfs=nfs(path, server=server)), TARGETS)
    locate(Volume(name="v", csi=CsiSource(handle=handle)), TARGETS)


@pytest.mark.parametrize("name", ["共有　A", "a\u00a0b", "👩‍👩‍👧", "a\tb", "x" * 300])
def test_volume_in_a_directory_of_any_name_is_located(name: str) -> None:
    """Otherwise it would not prevent the removal of a directory above its own."""
    by_name = Volume(name="v", nfs=nfs(f"/data/{name}"), file_system_id="fs-1")
    found = locate(by_name, TARGETS)
    assert found is not None
    assert found.directory == Directory(("data", name))
    assert not found.directory.is_plain
    unknown = Volume(name="v", nfs=nfs(f"/data/{name}", server="10.9.9.9"))
    assert unlocated_directory(unknown) == Directory(("data", name))


@pytest.mark.parametrize("server", ["[fd00::4]", "FD00::0:4", "fd00::4"])
def test_address_in_any_spelling_is_that_of_a_mount_target(server: str) -> None:
    target = TunnelTarget(file_system_id=FS1, port=20490, address_by_subnet={SubnetId("subnet-1"): "fd00::4"})
    volume = Volume(name="v", nfs=nfs("/a", server=server))
    assert str(locate(volume, TunnelTargets(targets={FS1: target}))) == "fs-1:/a"
    assert unlocated_directory(volume) == Directory(("a",))
