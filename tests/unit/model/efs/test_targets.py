"""The document that the controller writes, and the rules for the assignment of ports."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.efs.file_systems import Discovery, FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, SubnetId, ZoneName
from kube_efs.model.efs.targets import (
    PortUse,
    S3FilesTargets,
    TunnelTarget,
    TunnelTargets,
    follow_discovery,
    joined,
    parse_address,
    parse_targets,
    render_reserved,
    render_s3_files,
    render_targets,
    render_unused,
    render_zones,
    unused_targets,
)
from kube_efs.model.errors import InvalidValue

BASE = 20490
FS1, FS2, FS3 = (FileSystemId(f"fs-{number}") for number in (1, 2, 3))
NOON = datetime(2026, 11, 21, 12, 0, 0, 987654, tzinfo=UTC)

# The example of the older system's README, with the key that its programs add.
CONTRACT = """\
efs_stunnel_targets:
  fs-34a3p3:
    stunnel_port: 20490
    mount_target_ip_by_subnet:
      subnet-ao4u3pai: 10.0.0.4
      subnet-b4oup3be: 10.0.1.4
last_update: '2026-11-21T12:00:00Z'
"""


def target(
    file_system_id: FileSystemId,
    port: int,
    addresses: Mapping[str, str] | None = None,
    name: str | None = None,
) -> TunnelTarget:
    by_subnet = {SubnetId(subnet): address for subnet, address in (addresses or {}).items()}
    return TunnelTarget(file_system_id=file_system_id, port=port, name=name, address_by_subnet=by_subnet)


def targets(*several: TunnelTarget, zones: Mapping[str, str] | None = None) -> TunnelTargets:
    return TunnelTargets(
        targets={one.file_system_id: one for one in several},
        zone_by_subnet={SubnetId(subnet): ZoneName(zone) for subnet, zone in (zones or {}).items()},
    )


EXAMPLE = targets(
    target(FileSystemId("fs-34a3p3"), 20490, {"subnet-b4oup3be": "10.0.1.4", "subnet-ao4u3pai": "10.0.0.4"})
)


def test_document_matches_the_contract_exactly() -> None:
    assert render_targets(EXAMPLE, last_update=NOON) == CONTRACT


def test_document_of_the_older_system_is_read() -> None:
    assert parse_targets(CONTRACT) == (EXAMPLE, ())


def test_document_has_names_and_a_fixed_order() -> None:
    several = targets(target(FS2, 20490, {"subnet-a": "fd00::4"}), target(FS1, 20491, name="Ärger: #1\n"))
    document = render_targets(several, last_update=NOON.astimezone(timezone(timedelta(hours=9))))
    assert document == (
        "efs_stunnel_targets:\n"
        "  fs-1:\n"
        '    name: "\\xC4rger: #1\\n"\n'
        "    stunnel_port: 20491\n"
        "    mount_target_ip_by_subnet: {}\n"
        "  fs-2:\n"
        "    stunnel_port: 20490\n"
        "    mount_target_ip_by_subnet:\n"
        "      subnet-a: fd00::4\n"
        "last_update: '2026-11-21T12:00:00Z'\n"
    )


def test_zones_document_is_rendered() -> None:
    zones = targets(zones={"subnet-b": "us-east-1b", "subnet-a": "us-east-1a"})
    assert render_zones(zones) == "subnet-a: us-east-1a\nsubnet-b: us-east-1b\n"


def _is_a_host(text: str) -> bool:
    try:
        parse_address(text)
    except InvalidValue:
        return False
    return True


_IDS = st.from_regex(r"fs-[0-9a-z]{1,17}", fullmatch=True).map(FileSystemId)
_SUBNETS = st.from_regex(r"subnet-[0-9a-z]{1,17}", fullmatch=True).map(SubnetId)
_ADDRESSES = st.ip_addresses().map(str).filter(_is_a_host)
_ZONES = st.from_regex(r"[a-z]{2}-[a-z]{4}-[1-9][a-f]", fullmatch=True).map(ZoneName)


@st.composite
def _targets(draw: st.DrawFn) -> TunnelTargets:
    ids = draw(st.lists(_IDS, unique=True, max_size=5))
    ports = draw(st.lists(st.integers(1024, 65535), unique=True, min_size=len(ids), max_size=len(ids)))
    several = {
        fs: TunnelTarget(
            file_system_id=fs,
            port=port,
            name=draw(st.none() | st.text(min_size=1)),
            address_by_subnet=draw(st.dictionaries(_SUBNETS, _ADDRESSES, max_size=3)),
        )
        for fs, port in zip(ids, ports, strict=True)
    }
    unused = draw(st.sets(st.sampled_from(ids))) if ids else set()
    zones = draw(st.dictionaries(_SUBNETS, _ZONES))
    s3_files = S3FilesTargets(
        addresses=draw(st.dictionaries(_IDS, st.dictionaries(_ZONES, _ADDRESSES, max_size=3), max_size=3)),
        zone_ids=draw(st.dictionaries(_ZONES, _ZONES, max_size=3)),
    )
    return TunnelTargets(targets=several, zone_by_subnet=zones, unused=frozenset(unused), s3_files=s3_files)


@given(_targets())
def test_written_document_is_read_back(written: TunnelTargets) -> None:
    text = render_targets(written, last_update=NOON)
    unused, s3_files = render_unused(written), render_s3_files(written.s3_files)
    found = parse_targets(text, render_zones(written), unused_text=unused, s3_files_text=s3_files)
    assert found == (written, ())


@st.composite
def _crowded(draw: st.DrawFn) -> TunnelTargets:
    """Few names and ports, so that conflicts are frequent."""
    ids = draw(st.lists(st.sampled_from([FileSystemId(f"fs-{one}") for one in "abcd"]), unique=True))
    ports = draw(st.permutations(range(20490, 20495)))
    gone = draw(st.integers(0, len(ids)))
    several = [target(fs, port, {}) for fs, port in zip(ids[gone:], ports[gone:], strict=False)]
    return replace(targets(*several), reserved=dict(zip(ids[:gone], ports, strict=False)))


@given(_crowded(), _crowded())
def test_merge_keeps_our_ports_and_duplicates_none(ours: TunnelTargets, theirs: TunnelTargets) -> None:
    both = joined(ours, theirs)

    assert both.ports.items() >= ours.ports.items()
    assert ours.ports.items() | theirs.ports.items() >= both.ports.items()
    assert len(set(both.ports.values())) == len(both.ports)
    left_out = theirs.ports.keys() - both.ports.keys()
    assert {theirs.ports[fs] for fs in left_out} <= set(ours.ports.values())


def test_empty_document_has_no_targets() -> None:
    assert parse_targets("") == (TunnelTargets(), ())
    assert parse_targets("efs_stunnel_targets:\nlast_update: x\n") == (TunnelTargets(), ())


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        pytest.param("[]", "efs-stunnel.yaml", "is not a mapping", id="empty list"),
        pytest.param("false", "efs-stunnel.yaml", "is not a mapping", id="no"),
        pytest.param("fs-1: 20490\nfs-1", "efs-stunnel.yaml", "is not YAML", id="not YAML"),
        pytest.param("!!python/name:os.system", "efs-stunnel.yaml", "is not YAML", id="tag of Python"),
        pytest.param("at: 2026-13-45", "efs-stunnel.yaml", "is not YAML", id="invalid date"),
        pytest.param("[" * 2000, "efs-stunnel.yaml", "is not YAML", id="nested too deeply"),
        pytest.param("a: \x00", "efs-stunnel.yaml", "is not YAML", id="NUL byte"),
        pytest.param("efs_stunnel_targets: [fs-1]", "efs_stunnel_targets", "is not a mapping", id="list"),
        pytest.param("efs_stunnel_targets: ''", "efs_stunnel_targets", "is not a mapping", id="empty text"),
    ],
)
def test_unreadable_document_is_refused(text: str, field: str, problem: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_targets(text)
    assert caught.value.field == field
    assert caught.value.problem.startswith(problem)


GOOD = "  fs-9:\n    stunnel_port: 20499\n    mount_target_ip_by_subnet: {subnet-a: 10.0.0.9}\n"
_SUBNETS_FIELD = "fs-1.mount_target_ip_by_subnet"


def _address(text: str) -> str:
    return f"fs-1: {{stunnel_port: 20490, mount_target_ip_by_subnet: {{subnet-a: {text}}}}}"


@pytest.mark.parametrize(
    ("entry", "field", "problem"),
    [
        pytest.param("fs-1: {}", "fs-1.stunnel_port", "is not a valid port", id="no port"),
        pytest.param("fs-1:", "fs-1.stunnel_port", "is not a valid port", id="missing entry"),
        pytest.param("fs-1: 20490", "fs-1", "is not a mapping", id="number instead of an entry"),
        pytest.param(
            "fs-1: {stunnel_port: 80}", "fs-1.stunnel_port", "is not a valid port", id="privileged port"
        ),
        pytest.param(
            "fs-1: {stunnel_port: 65536}", "fs-1.stunnel_port", "is not a valid port", id="too high"
        ),
        pytest.param("fs-1: {stunnel_port: -1}", "fs-1.stunnel_port", "is not a valid port", id="negative"),
        pytest.param("fs-1: {stunnel_port: yes}", "fs-1.stunnel_port", "is not a valid port", id="boolean"),
        pytest.param("fs-1: {stunnel_port: '20490'}", "fs-1.stunnel_port", "is not a valid port", id="text"),
        pytest.param(
            "fs-1: {stunnel_port: 20490.0}", "fs-1.stunnel_port", "is not a valid port", id="fraction"
        ),
        pytest.param(
            "fs-1: {stunnel_port: 20499}",
            "fs-1.stunnel_port",
            "is the port of another file system",
            id="port of another",
        ),
        pytest.param("FS-1: {stunnel_port: 20490}", "file system ID", "is not valid", id="uppercase letters"),
        pytest.param(
            '"fs-1]\\nexec = /bin/sh": {stunnel_port: 20490}',
            "file system ID",
            "is not valid",
            id="lines of stunnel.conf in the id",
        ),
        pytest.param("7: {stunnel_port: 20490}", "file system ID", "is not valid", id="number as id"),
        pytest.param(
            f"? 0x{'f' * 5000}\n  : {{stunnel_port: 20490}}",
            "file system ID",
            "is not valid",
            id="number of thousands of digits as id",
        ),
        pytest.param(
            _address("evil.example.org"), f"{_SUBNETS_FIELD}.subnet-a", "is not an IP address", id="name"
        ),
        pytest.param(
            _address('"10.0.0.4\\nexec = /bin/sh"'),
            f"{_SUBNETS_FIELD}.subnet-a",
            "is not an IP address",
            id="lines of stunnel.conf in the address",
        ),
        pytest.param(_address("10"), f"{_SUBNETS_FIELD}.subnet-a", "is not an IP address", id="number"),
        pytest.param(
            _address("10.0.0.4:2049"),
            f"{_SUBNETS_FIELD}.subnet-a",
            "is not an IP address",
            id="address with a port",
        ),
        pytest.param(_address("null"), f"{_SUBNETS_FIELD}.subnet-a", "is not an IP address", id="no address"),
        pytest.param(_address("fe80::1%eth0"), f"{_SUBNETS_FIELD}.subnet-a", "has a zone index", id="zone"),
        pytest.param(
            _address("0.0.0.0"), f"{_SUBNETS_FIELD}.subnet-a", "is not the address of a host", id="any"
        ),
        pytest.param(
            _address("ff02::1"), f"{_SUBNETS_FIELD}.subnet-a", "is not the address of a host", id="many"
        ),
        pytest.param(
            "fs-1: {stunnel_port: 20490, mount_target_ip_by_subnet: [10.0.0.4]}",
            _SUBNETS_FIELD,
            "is not a mapping",
            id="list of addresses",
        ),
        pytest.param(
            "fs-1: {stunnel_port: 20490, mount_target_ip_by_subnet: {'subnet-a b': 10.0.0.4}}",
            _SUBNETS_FIELD,
            "is not valid",
            id="invalid subnet ID",
        ),
    ],
)
def test_invalid_entry_is_omitted_and_others_are_kept(entry: str, field: str, problem: str) -> None:
    found, rejections = parse_targets(f"efs_stunnel_targets:\n{GOOD}  {entry}\n")
    assert found == targets(target(FileSystemId("fs-9"), 20499, {"subnet-a": "10.0.0.9"}))
    (rejection,) = rejections
    assert (rejection.error.field, rejection.error.problem) == (field, problem)
    assert str(rejection.error)


def test_second_entry_with_the_same_port_is_omitted() -> None:
    found, rejections = parse_targets(
        "efs_stunnel_targets: {fs-2: {stunnel_port: 1025}, fs-1: {stunnel_port: 1025}}"
    )
    assert list(found.targets) == [FS2]
    assert [rejection.entry for rejection in rejections] == ["fs-1"]


def test_yaml_that_expands_to_gigabytes_is_refused_with_a_short_error() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 15)
    )
    _, (rejection,) = parse_targets(
        f"{bomb}efs_stunnel_targets: {{fs-1: {{name: *a14, stunnel_port: *a14}}}}"
    )
    assert rejection.entry == "fs-1"
    assert len(str(rejection.error)) < 1000


def test_invalid_zone_keeps_the_targets_and_the_other_zones() -> None:
    found, rejections = parse_targets(CONTRACT, "subnet-a: us-east-1a\nsubnet-b: 'no zone'\nx: us-east-1a\n")
    assert found.targets == EXAMPLE.targets
    assert found.zone_by_subnet == {"subnet-a": "us-east-1a"}
    assert [rejection.entry for rejection in rejections] == ["zones.yaml: subnet-b", "zones.yaml: x"]


@pytest.mark.parametrize(
    "text", ["[", "mount_targets: 1", "mount_targets: {fs-1: {use1-az1: name}}", "zone_ids: {a: ''}"]
)
def test_unreadable_mount_targets_of_s3_files_keep_the_targets(text: str) -> None:
    found, rejections = parse_targets(CONTRACT, s3_files_text=text)
    assert found == EXAMPLE
    assert [rejection.entry for rejection in rejections] == ["s3-files.yaml"]


def test_unreadable_zones_keep_the_targets() -> None:
    found, rejections = parse_targets(CONTRACT, "[")
    assert found == EXAMPLE
    assert [rejection.entry for rejection in rejections] == ["zones.yaml"]


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([20490, "fs-1", "subnet-a"])
)
_KEYS = st.sampled_from(
    [
        "efs_stunnel_targets",
        "fs-1",
        "fs-2",
        "name",
        "stunnel_port",
        "mount_target_ip_by_subnet",
        "subnet-a",
        1,
    ]
)
_DOCUMENTS = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3)
)


@given(st.text() | _DOCUMENTS.map(lambda document: str(yaml.safe_dump(document))))
def test_any_text_gives_targets_or_a_typed_error(text: str) -> None:
    try:
        parse_targets(text, text)
    except InvalidValue:
        return


def system(
    file_system_id: FileSystemId,
    *,
    state: LifeCycleState = LifeCycleState.AVAILABLE,
    addresses: Mapping[str, str] | None = None,
    target_state: LifeCycleState = LifeCycleState.AVAILABLE,
    name: str | None = None,
) -> FileSystem:
    return FileSystem(
        file_system_id=file_system_id,
        name=name,
        state=state,
        mount_targets=tuple(
            MountTarget(
                mount_target_id=MountTargetId(f"fsmt-{subnet}"),
                file_system_id=file_system_id,
                subnet_id=SubnetId(subnet),
                zone=ZoneName(f"zone-of-{subnet}"),
                address=address,
                state=target_state,
            )
            for subnet, address in (addresses or {}).items()
        ),
    )


def discovery(*systems: FileSystem, unclear: frozenset[FileSystemId] = frozenset()) -> Discovery:
    return Discovery(
        file_systems={one.file_system_id: one for one in systems}, unclear=unclear, complete=True
    )


def ports(found: TunnelTargets) -> dict[str, int]:
    return {fs: one.port for fs, one in found.targets.items()}


def carried(owners: Mapping[int, FileSystemId | None]) -> dict[int, PortUse]:
    """The use of each port by one volume, with that annotation or without one."""
    return {
        port: PortUse(owners=frozenset() if owner is None else frozenset({owner}), unnamed=owner is None)
        for port, owner in owners.items()
    }


def test_new_file_systems_get_the_lowest_free_ports() -> None:
    found = follow_discovery(TunnelTargets(), discovery(system(FS3), system(FS1)), base_port=BASE)
    assert ports(found) == {"fs-1": 20490, "fs-3": 20491}


def test_free_port_between_others_is_reused() -> None:
    current = targets(target(FS1, 20490), target(FS3, 20492))
    found = follow_discovery(current, discovery(system(FS1), system(FS2), system(FS3)), base_port=BASE)
    assert ports(found) == {"fs-1": 20490, "fs-2": 20491, "fs-3": 20492}


def test_known_port_is_kept_after_the_base_port_changes() -> None:
    found = follow_discovery(
        targets(target(FS1, 20490)), discovery(system(FS1), system(FS2)), base_port=30000
    )
    assert ports(found) == {"fs-1": 20490, "fs-2": 30000}


def test_deleted_file_system_is_removed_from_the_targets() -> None:
    current = targets(target(FS1, 20490, {"subnet-a": "10.0.0.1"}), zones={"subnet-a": "us-east-1a"})
    assert follow_discovery(current, discovery(), base_port=BASE) == TunnelTargets()


@pytest.mark.parametrize("state", [LifeCycleState.CREATING, LifeCycleState.DELETING, LifeCycleState.ERROR])
def test_file_system_that_is_not_usable_gets_no_tunnel(state: LifeCycleState) -> None:
    assert ports(follow_discovery(TunnelTargets(), discovery(system(FS1, state=state)), base_port=BASE)) == {}


def test_returning_file_system_gets_the_port_of_its_volumes() -> None:
    found = follow_discovery(
        targets(target(FS1, 20490)),
        discovery(system(FS1), system(FS2)),
        base_port=BASE,
        ports_in_use=carried({20495: FS2, 20490: FS1}),
    )
    assert ports(found) == {"fs-1": 20490, "fs-2": 20495}


def test_port_of_another_file_systems_volumes_is_not_assigned() -> None:
    found = follow_discovery(
        TunnelTargets(),
        discovery(system(FS1)),
        base_port=BASE,
        ports_in_use=carried({20490: FS2, 20491: FS3}),
    )
    assert ports(found) == {"fs-1": 20492}


@pytest.mark.parametrize("port", [0, 80, 1023, 65536, 99999])
def test_invalid_port_is_not_taken_from_a_volume(port: int) -> None:
    found = follow_discovery(
        TunnelTargets(), discovery(system(FS1)), base_port=BASE, ports_in_use=carried({port: FS1})
    )
    assert ports(found) == {"fs-1": 20490}


def test_discovery_is_refused_when_no_port_is_free() -> None:
    with pytest.raises(InvalidValue) as caught:
        follow_discovery(TunnelTargets(), discovery(system(FS1), system(FS2)), base_port=65535)
    error = caught.value
    assert (error.field, error.value, error.problem) == (
        "BASE_STUNNEL_PORT",
        65535,
        "has no free port above it",
    )


def test_addresses_names_and_zones_follow_the_discovery() -> None:
    current = targets(
        target(FS1, 20490, {"subnet-a": "10.0.0.1", "subnet-b": "10.0.1.1"}, name="old"),
        zones={"subnet-a": "us-east-1a", "subnet-b": "us-east-1b"},
    )
    found = follow_discovery(
        current, discovery(system(FS1, addresses={"subnet-a": "10.0.0.7"}, name="new")), base_port=BASE
    )
    assert found == targets(
        target(FS1, 20490, {"subnet-a": "10.0.0.7"}, name="new"), zones={"subnet-a": "zone-of-subnet-a"}
    )


def test_unavailable_mount_target_is_omitted() -> None:
    deleting = system(FS1, addresses={"subnet-a": "10.0.0.1"}, target_state=LifeCycleState.DELETING)
    found = follow_discovery(TunnelTargets(), discovery(deleting), base_port=BASE)
    assert found == targets(target(FS1, 20490))


def test_file_system_of_unclear_state_keeps_its_known_targets() -> None:
    current = targets(
        target(FS1, 20490, {"subnet-a": "10.0.0.1"}, name="data"), zones={"subnet-a": "us-east-1a"}
    )
    found = follow_discovery(current, discovery(unclear=frozenset({FS1, FS2})), base_port=BASE)
    assert found == current


@dataclass(frozen=True)
class _Step:
    present: frozenset[FileSystemId]
    unclear: frozenset[FileSystemId]
    volumes_made_for: frozenset[FileSystemId]


_SOME = st.frozensets(st.sampled_from([FileSystemId(f"fs-{number}") for number in range(6)]))
_STEPS = st.lists(st.builds(_Step, present=_SOME, unclear=_SOME, volumes_made_for=_SOME), max_size=8)


@given(_STEPS)
def test_no_sequence_of_changes_leads_a_volume_to_other_data(steps: list[_Step]) -> None:
    current, in_use = TunnelTargets(), dict[int, FileSystemId]()
    for step in steps:
        systems = [system(fs) for fs in step.present - step.unclear]
        found = follow_discovery(
            current, discovery(*systems, unclear=step.unclear), base_port=BASE, ports_in_use=carried(in_use)
        )
        # A file system that stays keeps its port, an unclear one is neither lost nor invented.
        assert {fs: current.port_of(fs) for fs in current.targets if fs in step.present | step.unclear} == {
            fs: found.port_of(fs) for fs in current.targets if fs in step.present | step.unclear
        }
        assert set(found.targets) == (step.present - step.unclear) | (step.unclear & set(current.targets))
        # No two file systems share a port, and none has a port of another one's volumes.
        assert len(set(ports(found).values())) == len(found.targets)
        assert all(in_use.get(one.port, fs) == fs for fs, one in found.targets.items())
        # Who has volumes is where they expect it.
        assert all(found.port_of(fs) == port for port, fs in in_use.items() if fs in found.targets)
        # What is handed out can be read by the nodes.
        assert parse_targets(render_targets(found, last_update=NOON), "", render_reserved(found)) == (
            found,
            (),
        )
        in_use |= {one.port: fs for fs, one in found.targets.items() if fs in step.volumes_made_for}
        current = found


def test_port_of_an_unknown_owner_is_not_assigned() -> None:
    found = follow_discovery(
        TunnelTargets(), discovery(system(FS1)), base_port=BASE, ports_in_use=carried({20490: None})
    )
    assert ports(found) == {"fs-1": 20491}


def test_port_of_two_file_systems_is_assigned_to_neither() -> None:
    both = {20490: PortUse(owners=frozenset({FS1, FS2}))}
    found = follow_discovery(
        TunnelTargets(), discovery(system(FS1), system(FS2)), base_port=BASE, ports_in_use=both
    )
    assert ports(found) == {"fs-1": 20491, "fs-2": 20492}


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(PortUse(unnamed=True), id="no annotation"),
        pytest.param(PortUse(owners=frozenset({FS2})), id="its own annotation"),
        pytest.param(PortUse(owners=frozenset({FS1, FS2})), id="its own and another"),
        pytest.param(PortUse(owners=frozenset({FS1}), unnamed=True), id="another and none"),
    ],
)
def test_returning_file_system_has_its_earlier_port(use: PortUse) -> None:
    # Its number is the second, so that another would get the port first.
    in_use = {20490: use}
    gone = follow_discovery(
        targets(target(FS2, 20490)), discovery(system(FS1)), base_port=BASE, ports_in_use=in_use
    )
    assert (ports(gone), gone.reserved) == ({"fs-1": 20491}, {"fs-2": 20490})
    assert gone.file_system_at(20490) == FS2
    assert gone.port_of(FS2) is None
    read, _ = parse_targets(render_targets(gone, last_update=NOON), "", render_reserved(gone))
    back = follow_discovery(read, discovery(system(FS1), system(FS2)), base_port=BASE, ports_in_use=in_use)
    assert (ports(back), back.reserved) == ({"fs-1": 20491, "fs-2": 20490}, {})


def test_port_is_free_when_no_volume_uses_it() -> None:
    gone = TunnelTargets(reserved={FS2: 20490})
    assert ports(follow_discovery(gone, discovery(system(FS1)), base_port=BASE)) == {"fs-1": 20490}


def test_volumes_override_a_config_map_that_contradicts_them() -> None:
    swapped = targets(target(FS1, 20491), target(FS2, 20490))
    found = follow_discovery(
        swapped,
        discovery(system(FS1), system(FS2)),
        base_port=BASE,
        ports_in_use=carried({20490: FS1, 20491: FS2}),
    )
    assert ports(found) == {"fs-1": 20490, "fs-2": 20491}


def test_port_of_the_root_volume_overrides_older_ports() -> None:
    in_use = carried({20490: FS1}) | {20495: PortUse(owners=frozenset({FS1}), root=True)}
    found = follow_discovery(TunnelTargets(), discovery(system(FS1)), base_port=BASE, ports_in_use=in_use)
    assert ports(found) == {"fs-1": 20495}


@pytest.mark.parametrize("state", LifeCycleState)
def test_known_file_system_is_kept_until_its_deletion_starts(state: LifeCycleState) -> None:
    found = follow_discovery(targets(target(FS1, 20490)), discovery(system(FS1, state=state)), base_port=BASE)
    is_deleted = state in {LifeCycleState.DELETING, LifeCycleState.DELETED}
    assert ports(found) == ({} if is_deleted else {"fs-1": 20490})


def test_unreadable_reserved_port_does_not_affect_others() -> None:
    text = "{fs-2: 20491, fs-34a3p3: 20499, fs-3: 20490, fs-4: 80, 'no id': 20492, fs-5: 20491}"
    found, rejections = parse_targets(CONTRACT, "", text)
    assert found.targets == EXAMPLE.targets
    assert found.reserved == {"fs-2": 20491}
    assert [one.entry.partition(": ")[2] for one in rejections] == [
        "fs-34a3p3",
        "fs-3",
        "fs-4",
        "no id",
        "fs-5",
    ]
    found, rejections = parse_targets(CONTRACT, "", "[")
    assert (found, [one.entry for one in rejections]) == (EXAMPLE, ["reserved-ports.yaml"])


def test_port_and_file_system_can_be_looked_up() -> None:
    several = targets(target(FS1, 20490), target(FS2, 20491))
    assert (several.port_of(FS2), several.port_of(FS3)) == (20491, None)
    assert (several.file_system_at(20491), several.file_system_at(1)) == (FS2, None)


@pytest.mark.parametrize("text", ["{", "fs-1", "{fs-1: fs-1}", "[fs-1, 7]", "[../fs-1]"])
def test_no_port_is_unused_by_an_invalid_list(text: str) -> None:
    written = render_targets(targets(target(FS1, 20490, {})), last_update=NOON)
    found, rejections = parse_targets(written, unused_text=text)
    assert found.port_of(FS1) == 20490
    assert found.unused == frozenset()
    assert [one.entry for one in rejections] == ["unused-targets.yaml"]


def test_unknown_file_systems_of_the_list_are_ignored() -> None:
    written = render_targets(targets(target(FS1, 20490, {})), last_update=NOON)
    found, rejections = parse_targets(written, unused_text="[fs-2]")
    assert (found.unused, rejections) == (frozenset(), ())


@pytest.mark.parametrize(
    ("in_use", "unused"),
    [
        pytest.param({}, {FS1, FS2}, id="no volumes"),
        pytest.param({20490: PortUse(owners=frozenset({FS1}))}, {FS2}, id="a volume with its port"),
        pytest.param({20490: PortUse(unnamed=True)}, {FS2}, id="a volume without annotation"),
        pytest.param({20499: PortUse(owners=frozenset({FS1}))}, {FS2}, id="a volume with another port"),
        pytest.param({20490: PortUse(owners=frozenset({FS2}))}, set(), id="a contradiction"),
    ],
)
def test_port_is_used_while_any_volume_carries_it(
    in_use: dict[int, PortUse], unused: set[FileSystemId]
) -> None:
    known = targets(target(FS1, 20490, {}), target(FS2, 20491, {}))
    assert unused_targets(known, in_use) == unused


@pytest.mark.parametrize("key", ["fs-1", "\\udc00"])
@pytest.mark.parametrize("name", ["\\ud800", "\\uDFFF\\uD800"])
def test_json_with_characters_that_cannot_be_encoded_is_refused_as_yaml_is(key: str, name: str) -> None:
    """Such a name could be neither logged nor written."""
    text = f'{{"efs_stunnel_targets": {{"{key}": {{"stunnel_port": 20490, "name": "{name}"}}}}}}'
    for one in (text, f"# YAML\n{text}"):
        with pytest.raises(InvalidValue, match="is not YAML"):
            parse_targets(one)
