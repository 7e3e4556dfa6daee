"""The rules of openshift-efs-stunnel: served claims with their volumes, and the texts of refusals."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.claims import Claim, DataSource, ReclaimPolicy, StorageClass
from kube_efs.model.efs.directories import Permissions
from kube_efs.model.efs.file_systems import Discovery, FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, MountTargetId, SubnetId, VpcId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import ClaimRefused, InvalidValue, LeftAlone, NotYet, RemovalRefused
from kube_efs.model.tunnel_volumes import (
    ClusterView,
    parse_class,
    parse_request,
    removable_location,
    root_name,
    volume_for,
    volume_name,
)
from kube_efs.model.volumes import ClaimReference, CsiSource, Location, NfsSource, Volume, VolumePhase

PROVISIONER = "gnuthought.com/efs-stunnel"
FS1, FS2, FS3 = (FileSystemId(f"fs-{number}") for number in (1, 2, 3))


def mount_target(
    fs: FileSystemId, state: LifeCycleState = LifeCycleState.AVAILABLE, vpc: str | None = None
) -> MountTarget:
    return MountTarget(
        mount_target_id=MountTargetId(f"fsmt-{fs}"),
        file_system_id=fs,
        subnet_id=SubnetId("subnet-a"),
        zone=None,
        address="10.0.0.4",
        state=state,
        vpc_id=VpcId(vpc) if vpc else None,
    )


def system(fs: FileSystemId, *mount_targets: MountTarget, **fields: Any) -> FileSystem:
    return FileSystem(file_system_id=fs, mount_targets=mount_targets, **fields)


def view(*systems: FileSystem, unclear: frozenset[FileSystemId] = frozenset(), **fields: Any) -> ClusterView:
    found = {one.file_system_id: one for one in systems}
    return ClusterView(discovery=Discovery(file_systems=found, unclear=unclear, complete=True), **fields)


DISCOVERED = view(
    *(system(fs, mount_target(fs)) for fs in (FS2, FS1)), system(FS3, state=LifeCycleState.CREATING)
)


def storage_class(policy: ReclaimPolicy = ReclaimPolicy.DELETE, /, **parameters: str) -> StorageClass:
    return StorageClass(
        name="efs", provisioner=PROVISIONER, reclaim_policy=policy, parameters=parameters or {}
    )


AUTO = storage_class(default_file_system_id="auto")


def claim(labels: Mapping[str, str] | None = None, **fields: Any) -> Claim:
    values: dict[str, Any] = {"match_labels": {"volume_name": "example", **(labels or {})}, **fields}
    return replace(
        Claim(
            namespace="team",
            name="efs-example",
            uid=ClaimUid("11111111-2222-3333-4444-555555555555"),
            storage_class="efs",
            access_modes=("ReadWriteMany",),
            requested_storage="5Gi",
        ),
        **values,
    )


# --- what is served


def test_readme_example_is_served() -> None:
    request = parse_request(claim(), AUTO, DISCOVERED)
    assert str(request.location) == "fs-1:/team/example"
    assert request.reclaim_policy is ReclaimPolicy.DELETE
    assert request.mount_options == ()


@pytest.mark.parametrize(
    ("labels", "parameters", "file_system"),
    [
        pytest.param({}, {"default_file_system_id": "auto"}, FS1, id="auto: first known file system"),
        pytest.param(
            {},
            {"default_file_system_id": "auto", "file_system_ids": "fs-2,fs-1"},
            FS2,
            id="auto with a list: the first of the list",
        ),
        pytest.param({}, {"default_file_system_id": "fs-2"}, FS2, id="class's default"),
        pytest.param({}, {"default_file_system_id": " fs-2 "}, FS2, id="with spaces around"),
        pytest.param(
            {"file_system_id": "fs-2"},
            {"default_file_system_id": "fs-1"},
            FS2,
            id="label before the default",
        ),
        pytest.param({"file_system_id": "fs-2"}, {}, FS2, id="label without any parameter"),
        pytest.param(
            {"file_system_id": "fs-2"},
            {"file_system_ids": "fs-1, fs-2,"},
            FS2,
            id="label that is in the list",
        ),
    ],
)
def test_claim_selects_its_file_system(
    labels: Mapping[str, str], parameters: Mapping[str, str], file_system: str
) -> None:
    request = parse_request(claim(labels), storage_class(**parameters), DISCOVERED)
    assert request.location.file_system_id == file_system


@pytest.mark.parametrize(
    ("label", "policy", "expected"),
    [
        (None, ReclaimPolicy.DELETE, ReclaimPolicy.DELETE),
        (None, ReclaimPolicy.RETAIN, ReclaimPolicy.RETAIN),
        ("Delete", ReclaimPolicy.RETAIN, ReclaimPolicy.DELETE),
        ("Retain", ReclaimPolicy.DELETE, ReclaimPolicy.RETAIN),
    ],
)
def test_volume_has_the_reclaim_policy_of_its_claim_or_class(
    label: str | None, policy: ReclaimPolicy, expected: ReclaimPolicy
) -> None:
    labels = {"reclaim_policy": label} if label else {}
    asked = parse_request(claim(labels), storage_class(policy, default_file_system_id="auto"), DISCOVERED)
    assert asked.reclaim_policy is expected


def test_volume_keeps_the_mount_options_of_its_class() -> None:
    hard = replace(AUTO, mount_options=("hard", "timeo=600"))
    assert parse_request(claim(), hard, DISCOVERED).mount_options == ("hard", "timeo=600")


def test_claim_with_the_label_of_root_volumes_is_left_alone() -> None:
    with pytest.raises(LeftAlone) as caught:
        parse_request(claim({"root_key": "0123456789"}), AUTO, DISCOVERED)
    assert str(caught.value) == (
        "spec.selector.matchLabels.root_key: is reserved for the root volumes of file systems; "
        "create the claim again without this label"
    )
    # openshift-efs-stunnel looks only at the value.
    assert parse_request(claim({"root_key": ""}), AUTO, DISCOVERED)


# --- what is refused

NAMES = "use a-z, 0-9 and _, and - after the first character"
LABELS = "spec.selector.matchLabels"
REFUSED = [
    pytest.param(
        claim(match_labels=None),
        AUTO,
        "spec.selector: is missing; give matchLabels with a volume_name",
        id="no selector",
    ),
    pytest.param(
        claim(match_labels={}),
        AUTO,
        f"{LABELS}.volume_name: is missing; name the directory with a-z, 0-9, _ and -",
        id="no volume_name",
    ),
    pytest.param(
        claim({"volume_name": ""}),
        AUTO,
        f"{LABELS}.volume_name: is not allowed; {NAMES}",
        id="empty volume_name",
    ),
    pytest.param(
        claim({"volume_name": "My-Data"}),
        AUTO,
        f"{LABELS}.volume_name: 'My-Data' is not allowed; {NAMES}",
        id="volume_name with invalid characters",
    ),
    pytest.param(
        claim({"volume_name": ".."}),
        AUTO,
        f"{LABELS}.volume_name: '..' is not allowed; {NAMES}",
        id="parent as volume_name",
    ),
    pytest.param(
        claim({"volume_name": "a/b"}),
        AUTO,
        f"{LABELS}.volume_name: 'a/b' is not allowed; {NAMES}",
        id="path as volume_name",
    ),
    pytest.param(
        claim({"volume_name": "a\n"}),
        AUTO,
        f"{LABELS}.volume_name: 'a\\n' is not allowed; {NAMES}",
        id="trailing newline",
    ),
    pytest.param(
        claim({"volume_name": "-rf"}),
        AUTO,
        f"{LABELS}.volume_name: '-rf' is not allowed; {NAMES}",
        id="hyphen at the start",
    ),
    pytest.param(
        claim({"volume_name": "a;rm"}),
        AUTO,
        f"{LABELS}.volume_name: 'a;rm' is not allowed; {NAMES}",
        id="shell characters",
    ),
    pytest.param(
        claim({"file_system_id": "fs-2"}),
        storage_class(file_system_ids="fs-1,fs-3"),
        f"{LABELS}.file_system_id: 'fs-2' is not allowed; StorageClass efs allows fs-1, fs-3",
        id="file system that the class does not allow",
    ),
    pytest.param(
        claim({"file_system_id": "my disk"}),
        AUTO,
        f"{LABELS}.file_system_id: 'my disk' is not a valid file system ID; use an id such as "
        f"fs-0123456789abcdef0",
        id="no file system id",
    ),
    pytest.param(
        claim(),
        storage_class(),
        f"{LABELS}.file_system_id: is missing; give it, or set default_file_system_id in StorageClass efs",
        id="no file system and no default",
    ),
    pytest.param(
        claim(),
        storage_class(file_system_ids="fs-1"),
        f"{LABELS}.file_system_id: is missing; give it, or set default_file_system_id in StorageClass efs",
        id="no file system and a list without default",
    ),
    pytest.param(
        claim({"reclaim_policy": "Recycle"}),
        AUTO,
        f"{LABELS}.reclaim_policy: 'Recycle' is not a reclaim policy; use Delete or Retain",
        id="unsupported reclaim policy",
    ),
    pytest.param(
        claim({"reclaim_policy": "delete"}),
        AUTO,
        f"{LABELS}.reclaim_policy: 'delete' is not a reclaim policy; use Delete or Retain",
        id="reclaim policy in lowercase",
    ),
    pytest.param(
        claim(),
        storage_class(default_file_system_id="first"),
        "StorageClass efs parameters.default_file_system_id: 'first' is not a valid file system ID; "
        "use ids such as fs-0123456789abcdef0",
        id="class with an invalid default",
    ),
    pytest.param(
        claim({"file_system_id": "fs-1"}),
        storage_class(file_system_ids="fs-1 fs-2"),
        "StorageClass efs parameters.file_system_ids: 'fs-1 fs-2' is not a valid file system ID; "
        "use ids such as fs-0123456789abcdef0",
        id="class with a list without commas",
    ),
    pytest.param(
        claim(),
        storage_class(default_file_system_id="auto", directory_mode="rwx"),
        "StorageClass efs parameters.directory_mode: 'rwx' is not a valid octal mode; "
        "use three or four octal digits, such as 0777",
        id="class with an invalid mode",
    ),
    pytest.param(
        claim(is_block=True),
        AUTO,
        "spec.volumeMode: 'Block' cannot be served by NFS; use Filesystem",
        id="block device",
    ),
    pytest.param(
        claim(data_source=DataSource(kind="Database", name="x", group="example.com")),
        AUTO,
        "spec.dataSource: 'Database x' cannot be copied; name a PersistentVolumeClaim or a VolumeSnapshot",
        id="data source of another kind",
    ),
    pytest.param(
        claim(data_source=DataSource(kind="PersistentVolumeClaim", name="x", group="example.com")),
        AUTO,
        "spec.dataSource: 'PersistentVolumeClaim x' cannot be copied; "
        "name a PersistentVolumeClaim or a VolumeSnapshot",
        id="data source of another group",
    ),
    pytest.param(
        claim(data_source=DataSource(kind="PersistentVolumeClaim", name="x", namespace="elsewhere")),
        AUTO,
        "spec.dataSourceRef.namespace: 'elsewhere' is another namespace than that of the claim; "
        "copy within one namespace",
        id="data source of another namespace",
    ),
    pytest.param(
        claim(),
        storage_class(default_file_system_id="fs-1", file_system_ids="fs-2,fs-3"),
        "StorageClass efs parameters.default_file_system_id: 'fs-1' is not in file_system_ids; "
        "add it there, or use another default",
        id="default that the class does not allow",
    ),
    pytest.param(
        claim(),
        replace(AUTO, mount_options=("hard", "port=2049")),
        "StorageClass efs mountOptions: 'port=2049' cannot be combined with the tunnel; leave it out",
        id="own port",
    ),
    pytest.param(
        claim(),
        replace(AUTO, mount_options=("hard,port=2049",)),
        "StorageClass efs mountOptions: 'hard,port=2049' cannot be combined with the tunnel; leave it out",
        id="port after a comma",
    ),
    pytest.param(
        claim(),
        replace(AUTO, mount_options=("addr=10.0.0.4",)),
        "StorageClass efs mountOptions: 'addr=10.0.0.4' cannot be combined with the tunnel; leave it out",
        id="another address",
    ),
]


@pytest.mark.parametrize(("asking", "of_class", "text"), REFUSED)
def test_invalid_claim_is_refused(asking: Claim, of_class: StorageClass, text: str) -> None:
    with pytest.raises(ClaimRefused) as caught:
        parse_request(asking, of_class, DISCOVERED)
    assert str(caught.value) == text
    assert caught.value.field == text.partition(": ")[0]


@pytest.mark.parametrize(
    ("labels", "of_class", "discovered", "text"),
    [
        pytest.param(
            {"file_system_id": "fs-9"},
            AUTO,
            DISCOVERED,
            "file system: 'fs-9' is not known (yet); known file systems: fs-1, fs-2",
            id="missing file system",
        ),
        pytest.param(
            {"file_system_id": "fs-3"},
            AUTO,
            DISCOVERED,
            "file system: 'fs-3' is not known (yet); known file systems: fs-1, fs-2",
            id="file system that is being created",
        ),
        pytest.param(
            {},
            storage_class(default_file_system_id="fs-9"),
            ClusterView(discovery=Discovery()),
            "file system: 'fs-9' is not known (yet); known file systems: none",
            id="missing default",
        ),
        pytest.param(
            {},
            AUTO,
            ClusterView(discovery=Discovery()),
            "file system: 'auto' has not been discovered yet; "
            "create an EFS file system, or check the controller's AWS permissions",
            id="no file system at all",
        ),
    ],
)
def test_claim_waits_for_a_file_system_that_can_appear(
    labels: Mapping[str, str], of_class: StorageClass, discovered: ClusterView, text: str
) -> None:
    with pytest.raises(NotYet) as caught:
        parse_request(claim(labels), of_class, discovered)
    assert str(caught.value) == text


@pytest.mark.parametrize("label", ["", "auto"])
@pytest.mark.parametrize(("default", "chosen"), [("fs-2", "fs-2"), ("auto", "fs-1")])
def test_empty_label_and_auto_mean_the_default_of_the_class(label: str, default: str, chosen: str) -> None:
    of_class = storage_class(default_file_system_id=default)
    request = parse_request(claim({"file_system_id": label}), of_class, DISCOVERED)
    assert request.location.file_system_id == chosen
    assert request.is_chosen is (default == "auto")


def test_label_may_name_a_file_system_although_the_default_is_not_allowed() -> None:
    of_class = storage_class(default_file_system_id="fs-1", file_system_ids="fs-2")
    request = parse_request(claim({"file_system_id": "fs-2"}), of_class, DISCOVERED)
    assert request.location.file_system_id == "fs-2"


@pytest.mark.parametrize(
    ("text", "permissions"),
    [
        pytest.param("", Permissions(mode=0o777, enforced=False), id="default"),
        pytest.param("0777", Permissions(mode=0o777, enforced=True), id="as with openshift-efs-stunnel"),
        pytest.param("0770", Permissions(mode=0o770, enforced=True), id="four digits"),
        pytest.param("2770", Permissions(mode=0o2770, enforced=True), id="setgid"),
        pytest.param("755", Permissions(mode=0o755, enforced=True), id="three digits"),
    ],
)
def test_class_sets_the_mode_of_directories(text: str, permissions: Permissions) -> None:
    of_class = storage_class(default_file_system_id="auto", directory_mode=text)
    assert parse_request(claim(), of_class, DISCOVERED).permissions == permissions


def test_class_parameters_are_parsed() -> None:
    parsed = parse_class(storage_class(default_file_system_id="fs-2", file_system_ids=" fs-1 ,, fs-2 "))
    assert (parsed.default, parsed.allowed) == ("fs-2", ("fs-1", "fs-2"))


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_empty_parameters_count_as_missing(text: str) -> None:
    parsed = parse_class(storage_class(default_file_system_id=" ", file_system_ids=text))
    assert (parsed.default, parsed.allowed) == (None, None)


@given(st.text())
def test_volume_name_cannot_leave_the_directory_of_the_namespace(name: str) -> None:
    try:
        request = parse_request(claim({"volume_name": name}), AUTO, DISCOVERED)
    except InvalidValue:
        return
    assert request.location.directory.parts == ("team", name)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")


# --- which file system auto chooses

OLD, NEW = FS2, FS1
PORTS = TunnelTargets(
    targets={
        OLD: TunnelTarget(file_system_id=OLD, port=20490),
        NEW: TunnelTarget(file_system_id=NEW, port=20491),
    }
)
RETAINED = Volume(name="kept", phase=VolumePhase.RELEASED, reclaim_policy=ReclaimPolicy.RETAIN)
SHARED = Volume(name="shared", phase=VolumePhase.BOUND, reclaim_policy=ReclaimPolicy.DELETE)
GOING = Volume(name="going", phase=VolumePhase.RELEASED, reclaim_policy=ReclaimPolicy.DELETE)
DELETED = replace(RETAINED, name="deleted", deleting=True)


def with_volumes(**volumes: Volume) -> Callable[[Location], list[Volume]]:
    """A view with a volume of the claim's directory on each of these file systems."""

    def volumes_at(location: Location) -> list[Volume]:
        assert str(location.directory) == "/team/example"
        found = volumes.get(location.file_system_id.replace("-", "_"))
        return [found] if found else []

    return volumes_at


def both(vpc_of_old: str | None = None, vpc_of_new: str | None = None, **fields: Any) -> ClusterView:
    old, new = mount_target(OLD, vpc=vpc_of_old), mount_target(NEW, vpc=vpc_of_new)
    return view(system(OLD, old), system(NEW, new), **{"targets": PORTS, **fields})


CREATING = LifeCycleState.CREATING
HOME = frozenset({VpcId("vpc-a")})
LISTED = storage_class(default_file_system_id="auto", file_system_ids="fs-9,fs-1,fs-2")


@pytest.mark.parametrize(
    ("seen", "of_class", "chosen"),
    [
        pytest.param(both(), AUTO, OLD, id="file system in use longest"),
        pytest.param(
            both(targets=TunnelTargets(targets={OLD: PORTS.targets[OLD]})),
            AUTO,
            OLD,
            id="not a new file system",
        ),
        pytest.param(both(), LISTED, NEW, id="first existing one of the list"),
        pytest.param(both(volumes_at=with_volumes(fs_1=RETAINED)), AUTO, NEW, id="where data was retained"),
        pytest.param(
            both(volumes_at=with_volumes(fs_1=SHARED)), AUTO, NEW, id="where other volumes use the directory"
        ),
        pytest.param(both(volumes_at=with_volumes(fs_2=SHARED)), LISTED, OLD, id="data before the list"),
        pytest.param(
            both(volumes_at=with_volumes(fs_1=GOING)), AUTO, NEW, id="where the directory is being removed"
        ),
        pytest.param(
            both(volumes_at=with_volumes(fs_1=RETAINED, fs_2=GOING)), AUTO, NEW, id="retained data first"
        ),
        pytest.param(both(volumes_at=with_volumes(fs_1=RETAINED, fs_2=SHARED)), AUTO, OLD, id="data on both"),
        pytest.param(
            both(volumes_at=with_volumes(fs_1=RETAINED, fs_2=DELETED)),
            AUTO,
            NEW,
            id="volume that is not deleted first",
        ),
        pytest.param(
            both(volumes_at=with_volumes(fs_1=DELETED)), AUTO, NEW, id="data of a volume that is deleted"
        ),
        pytest.param(
            view(system(OLD), system(NEW, mount_target(NEW)), targets=PORTS),
            AUTO,
            NEW,
            id="not one without mount target",
        ),
        pytest.param(
            view(system(OLD, mount_target(OLD, CREATING)), system(NEW, mount_target(NEW)), targets=PORTS),
            AUTO,
            NEW,
            id="not one whose mount target is not ready",
        ),
        pytest.param(
            view(system(OLD), system(NEW, mount_target(NEW)), targets=PORTS),
            storage_class(default_file_system_id="auto", file_system_ids="fs-2,fs-1"),
            NEW,
            id="not the first of the list without mount target",
        ),
        pytest.param(
            view(system(NEW, mount_target(NEW)), unclear=frozenset({OLD}), targets=PORTS),
            AUTO,
            NEW,
            id="not one in an unclear state",
        ),
        pytest.param(both("vpc-b", "vpc-a", own_vpcs=HOME), AUTO, NEW, id="not one of another VPC"),
        pytest.param(
            both("vpc-b", "vpc-a", own_vpcs=HOME, volumes_at=with_volumes(fs_2=GOING)),
            AUTO,
            NEW,
            id="not one of another VPC for data being removed",
        ),
        pytest.param(both("vpc-b", "vpc-a"), AUTO, OLD, id="any VPC if the VPC of the nodes is unknown"),
        pytest.param(
            both("vpc-b", "vpc-b", own_vpcs=HOME), AUTO, OLD, id="another VPC without an alternative"
        ),
        pytest.param(
            both("vpc-b", "vpc-a", own_vpcs=HOME, volumes_at=with_volumes(fs_2=RETAINED)),
            AUTO,
            OLD,
            id="data in another VPC with a volume",
        ),
        pytest.param(
            view(system(NEW, mount_target(NEW)), targets=PORTS, volumes_at=with_volumes(fs_2=RETAINED)),
            AUTO,
            NEW,
            id="not data of a deleted file system",
        ),
        pytest.param(
            view(
                system(OLD, state=LifeCycleState.DELETING),
                system(NEW, mount_target(NEW)),
                targets=PORTS,
                volumes_at=with_volumes(fs_2=RETAINED),
            ),
            AUTO,
            NEW,
            id="not data of a file system that is being deleted",
        ),
    ],
)
def test_auto_chooses_a_file_system(seen: ClusterView, of_class: StorageClass, chosen: FileSystemId) -> None:
    assert parse_request(claim(), of_class, seen).location.file_system_id == chosen


@pytest.mark.parametrize(
    ("seen", "of_class", "text"),
    [
        pytest.param(
            view(system(OLD), system(NEW, mount_target(NEW, CREATING)), targets=PORTS),
            AUTO,
            "file system: 'fs-2, fs-1' has no usable mount target (fs-2 has no mount target; "
            "fs-1: fsmt-fs-1 in subnet-a is creating); "
            "create a mount target in a subnet that the nodes reach",
            id="no mount target anywhere",
        ),
        pytest.param(
            view(
                system(OLD),
                system(NEW, mount_target(NEW)),
                targets=PORTS,
                volumes_at=with_volumes(fs_2=RETAINED),
            ),
            AUTO,
            "file system: 'fs-2' has the volume of /team/example but has no usable mount target (fs-2 has no "
            "mount target); create a mount target in a subnet that the nodes reach, or name another file "
            "system in the claim's label file_system_id",
            id="data without a mount target",
        ),
        pytest.param(
            view(
                system(NEW, mount_target(NEW)),
                unclear=frozenset({OLD}),
                targets=PORTS,
                volumes_at=with_volumes(fs_2=SHARED),
            ),
            AUTO,
            "file system: 'fs-2' has the volume of /team/example but has no usable mount target (AWS has not "
            "reported the mount targets of fs-2 yet); create a mount target in a subnet that the nodes "
            "reach, or "
            "name another file system in the claim's label file_system_id",
            id="data on a file system in an unclear state",
        ),
        pytest.param(
            view(system(FS3, mount_target(FS3), state=CREATING)),
            AUTO,
            "file system: 'fs-3' has no usable mount target (fs-3 is creating); "
            "create a mount target in a subnet that the nodes reach",
            id="file system that is not ready",
        ),
        pytest.param(
            both(),
            storage_class(default_file_system_id="auto", file_system_ids="fs-8,fs-9"),
            "file system: 'fs-8, fs-9' is not known (yet); known file systems: fs-1, fs-2",
            id="none of the list",
        ),
    ],
)
def test_auto_waits_and_reports_the_reason(seen: ClusterView, of_class: StorageClass, text: str) -> None:
    with pytest.raises(NotYet) as caught:
        parse_request(claim(), of_class, seen)
    assert str(caught.value) == text


def chosen(asking: Claim, of_class: StorageClass, seen: ClusterView) -> FileSystemId:
    return parse_request(asking, of_class, seen).location.file_system_id


def test_recorded_choice_is_kept_while_its_file_system_is_usable() -> None:
    asking = claim(file_system=FS2)
    assert chosen(asking, AUTO, DISCOVERED) == FS2
    assert chosen(claim({"file_system_id": "fs-1"}, file_system=FS2), AUTO, DISCOVERED) == FS1
    of_list = storage_class(default_file_system_id="auto", file_system_ids="fs-1")
    assert chosen(asking, of_list, DISCOVERED) == FS1
    assert chosen(asking, AUTO, both(volumes_at=with_volumes(fs_1=RETAINED))) == FS1
    # It was chosen before another one in the nodes' VPC was known.
    assert chosen(asking, AUTO, both("vpc-b", "vpc-a", own_vpcs=HOME)) == FS1
    assert chosen(asking, AUTO, both("vpc-b", "vpc-b", own_vpcs=HOME)) == FS2


@pytest.mark.parametrize("of_class", [AUTO, storage_class(default_file_system_id="fs-1")])
def test_choice_is_kept_while_the_volume_of_an_earlier_controller_can_appear(
    of_class: StorageClass,
) -> None:
    asking = claim(file_system=FS3)
    seen = replace(DISCOVERED, maybe_begun={asking.uid: asking})
    assert chosen(asking, of_class, DISCOVERED) == FS1
    with pytest.raises(NotYet, match="'fs-3' was chosen by an earlier controller, whose volume can still"):
        parse_request(asking, of_class, seen)
    # An earlier controller that has recorded nothing has not requested a volume.
    assert chosen(claim(), of_class, seen) == FS1


@pytest.mark.parametrize(
    "other",
    [
        {"file_system": FS2},
        {"labels": {"file_system_id": "fs-2"}},
        {"labels": {"file_system_id": ""}, "file_system": FS2},
        {"labels": {"file_system_id": "auto"}, "file_system": FS2},
    ],
)
def test_claim_chooses_as_another_claim_of_its_directory_whose_volume_can_still_appear(
    other: dict[str, Any],
) -> None:
    first = claim(other.pop("labels", None), uid=ClaimUid("of-the-first"), **other)
    begun = {first.uid: first, claim().uid: claim()}
    assert chosen(claim(), AUTO, DISCOVERED) == FS1
    assert chosen(claim(), AUTO, replace(DISCOVERED, maybe_begun=begun)) == FS2
    elsewhere = replace(first, match_labels={**(first.match_labels or {}), "volume_name": "other"})
    assert chosen(claim(), AUTO, replace(DISCOVERED, maybe_begun={first.uid: elsewhere})) == FS1
    with pytest.raises(NotYet, match="'fs-2' has the volume of /team/example but has no usable mount target"):
        parse_request(
            claim(),
            AUTO,
            view(system(FS1, mount_target(FS1)), unclear=frozenset({FS2}), maybe_begun=begun),
        )


_HOLDINGS = st.dictionaries(st.sampled_from([FS1, FS2, FS3]), st.sampled_from([RETAINED, SHARED, GOING]))
_SYSTEMS = st.dictionaries(
    st.sampled_from([FS1, FS2, FS3]),
    st.sampled_from([None, "vpc-a", "vpc-b"]).flatmap(lambda vpc: st.tuples(st.just(vpc), st.booleans())),
)


@given(_SYSTEMS, _HOLDINGS, st.booleans())
def test_auto_never_hides_data_and_never_chooses_an_unreachable_file_system(
    systems: dict[FileSystemId, tuple[str | None, bool]],
    holdings: dict[FileSystemId, Volume],
    knows_vpc: bool,
) -> None:
    there = [
        system(fs, *([mount_target(fs, vpc=vpc)] if has_target else []))
        for fs, (vpc, has_target) in systems.items()
    ]
    seen = view(
        *there,
        volumes_at=lambda at: [holdings[at.file_system_id]] if at.file_system_id in holdings else [],
        own_vpcs=HOME if knows_vpc else frozenset(),
    )
    reachable = {fs for fs, (_, has_target) in systems.items() if has_target}
    homes = {fs for fs, volume in holdings.items() if volume is not GOING} & systems.keys()
    try:
        chosen = parse_request(claim(), AUTO, seen).location.file_system_id
    except NotYet:
        assert not reachable & (homes or systems.keys())
        return
    assert chosen in reachable
    assert not homes or chosen in homes
    if knows_vpc and not homes and any(systems[fs][0] != "vpc-b" for fs in reachable):
        assert systems[chosen][0] != "vpc-b"


# --- the volume


def test_tunnel_volume_matches_the_contract() -> None:
    asking = claim({"reclaim_policy": "Retain", "other": "label"})
    request = parse_request(asking, replace(AUTO, mount_options=("hard",)), DISCOVERED)
    volume = volume_for(request, port=20490, provisioner=PROVISIONER)
    assert volume == Volume(
        name=volume.name,
        reclaim_policy=ReclaimPolicy.RETAIN,
        storage_class="efs",
        provisioned_by="gnuthought.com/efs-stunnel",
        file_system_id="fs-1",
        claim=ClaimReference(namespace="team", name="efs-example", uid=asking.uid),
        nfs=NfsSource(server="127.0.0.1", path="/team/example"),
        mount_options=("port=20490", "hard"),
        labels={"volume_name": "example", "reclaim_policy": "Retain", "other": "label"},
        access_modes=("ReadWriteMany",),
        capacity="5Gi",
    )
    assert re.fullmatch(r"efs-stunnel-fs-1-team-example-[a-z2-7]{5}", volume.name)


# What Kubernetes accepts as the name of a volume (RFC 1123, DNS subdomain).
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAMESPACES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
_VOLUME_NAMES = st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,62}", fullmatch=True)


@given(_NAMESPACES, _VOLUME_NAMES, st.uuids().map(str), st.integers(0, 3))
def test_kubernetes_accepts_the_volume_names(namespace: str, name: str, uid: str, attempt: int) -> None:
    asking = claim({"volume_name": name}, namespace=namespace, uid=ClaimUid(uid))
    request = parse_request(asking, AUTO, DISCOVERED)
    given_name = volume_name(request, attempt)
    assert _SUBDOMAIN.fullmatch(given_name)
    assert len(given_name) <= 253
    assert given_name == volume_name(parse_request(asking, AUTO, DISCOVERED), attempt)


def test_longest_claim_name_gives_a_valid_volume_name() -> None:
    longest = FileSystemId("fs-" + "f" * 40)
    discovered = view(system(longest, mount_target(longest)))
    asking = claim({"volume_name": "_" * 63}, namespace="n" * 63)
    assert len(volume_name(parse_request(asking, AUTO, discovered))) <= 253


def test_another_claim_and_another_attempt_get_different_names() -> None:
    one = parse_request(claim(), AUTO, DISCOVERED)
    other = parse_request(claim(uid=ClaimUid("other")), AUTO, DISCOVERED)
    assert len({volume_name(one), volume_name(one, 1), volume_name(one, 2), volume_name(other)}) == 4


def test_volume_names_never_change() -> None:
    # A new version of kube-efs must find the volumes that an old one made.
    assert volume_name(parse_request(claim(), AUTO, DISCOVERED)) == "efs-stunnel-fs-1-team-example-ddxoz"


def test_root_volume_name_contains_the_file_system_id() -> None:
    assert root_name(FS1) == "efs-stunnel-fs-1"


# --- removal


RELEASED = Volume(
    name="pv",
    phase=VolumePhase.RELEASED,
    file_system_id="fs-1",
    claim=ClaimReference(namespace="team", name="data", uid=ClaimUid("u")),
    nfs=NfsSource(server="127.0.0.1", path="/team/example"),
)


def test_directory_of_the_claim_can_be_removed() -> None:
    assert str(removable_location(RELEASED)) == "fs-1:/team/example"


@pytest.mark.parametrize(
    "volume",
    [
        pytest.param(replace(RELEASED, file_system_id=None), id="no file system"),
        pytest.param(replace(RELEASED, file_system_id="fs-1/.."), id="invalid file system"),
        pytest.param(
            replace(RELEASED, file_system_id=None, mount_options=("port=20490",)), id="known only by its port"
        ),
        pytest.param(replace(RELEASED, nfs=None), id="no NFS"),
        pytest.param(
            replace(RELEASED, nfs=None, csi=CsiSource(handle="fs-1:/team/example")), id="CSI volume"
        ),
        pytest.param(
            replace(RELEASED, nfs=NfsSource(server="fs-1.efs.us-east-1.amazonaws.com", path="/team/example")),
            id="not behind a tunnel",
        ),
    ],
)
def test_removal_is_refused_for_a_volume_without_a_directory_behind_a_tunnel(volume: Volume) -> None:
    with pytest.raises(RemovalRefused) as caught:
        removable_location(volume)
    assert str(caught.value) == (
        "volume: 'pv' does not name a directory behind a tunnel; remove the volume manually"
    )


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/", id="root"),
        pytest.param("/a\nb", id="newline"),
        pytest.param("/team", id="namespace"),
        pytest.param("/team/", id="namespace with a slash"),
        pytest.param("/other/example", id="another namespace"),
        pytest.param("/team/example/deeper", id="deeper"),
        pytest.param("/team/example/", id="trailing slash"),
        pytest.param("/team//example", id="two slashes"),
        pytest.param("/team/../team/example", id="path with .."),
        pytest.param("/team/./example", id="path with ."),
        pytest.param("/team/Example", id="uppercase letters"),
        pytest.param("/team/.kube-efs-trash", id="dot"),
        pytest.param("/team/a b", id="space"),
    ],
)
def test_removal_is_refused_for_paths_other_than_the_directory_of_the_claim(path: str) -> None:
    with pytest.raises(RemovalRefused) as caught:
        removable_location(replace(RELEASED, nfs=NfsSource(server="127.0.0.1", path=path)))
    assert str(caught.value) == (
        f"spec.nfs.path: {path!r} is not the claim's directory; "
        "only /team/<volume_name> is removed; remove the volume manually"
    )


def test_removal_is_refused_for_a_volume_without_a_claim() -> None:
    with pytest.raises(RemovalRefused):
        removable_location(replace(RELEASED, claim=None))


@given(st.text(), st.text())
def test_removable_paths_match_the_contract(namespace: str, path: str) -> None:
    volume = replace(
        RELEASED,
        claim=ClaimReference(namespace=namespace, name="data"),
        nfs=NfsSource(server="127.0.0.1", path=f"/{namespace}/{path}"),
    )
    try:
        location = removable_location(volume)
    except RemovalRefused:
        return
    assert location.directory.parts == (namespace, path)
    assert re.fullmatch("[a-z0-9_][a-z0-9_-]*", path)
