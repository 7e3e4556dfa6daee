"""The reservations on the disk: valid, damaged, and of other versions."""

import json
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.aws.credential_sources import CredentialSource, IamOptions, ServiceAccountIdentity, SourceKind
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId, Region, ZoneName
from kube_efs.tunnels.on_demand.store import load_reservations, save_reservations
from kube_efs.tunnels.reservations import Holder, Reservation, Reservations, TunnelSpec

FULL = Reservation(
    spec=TunnelSpec(
        file_system_id=FileSystemId("fs-0123456789abcdef0"),
        access_point_id=AccessPointId("fsap-0123456789abcdef0"),
        iam=IamOptions(profile="team"),
        region=Region("us-east-1"),
        zone=ZoneName("us-east-1a"),
    ),
    port=22050,
    holders=frozenset({Holder("volume /pods/1"), Holder("volume /pods/2")}),
    source=CredentialSource(kind=SourceKind.PROFILE, target="team"),
)
OF_POD = Reservation(
    spec=TunnelSpec(
        file_system_id=FileSystemId("fs-1"),
        iam=ServiceAccountIdentity(
            namespace="team", name="web", role_arn="arn:aws:iam::123456789012:role/web"
        ),
    ),
    port=22052,
)
PLAIN = Reservation(spec=TunnelSpec(file_system_id=FileSystemId("fs-1")), port=22051)
BOTH = Reservations.of([FULL, PLAIN])
ALL = Reservations.of([FULL, PLAIN, OF_POD])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stunnel.demands.json"


def broken(path: Path, **changes: object) -> None:
    """Change the first entry in the file."""
    state = json.loads(path.read_text())
    state["tunnels"][0] |= changes
    path.write_text(json.dumps(state))


def test_saved_state_is_loaded(path: Path) -> None:
    save_reservations(path, ALL)
    found = load_reservations(path)
    assert found.reservations == ALL
    assert (found.unreadable, found.problems) == ((), ())
    assert path.stat().st_mode & 0o777 == 0o600


def test_version_without_service_accounts_refuses_their_entries() -> None:
    """If it ignored the service account, the mount of a pod would get the identity of the node."""

    @dataclass
    class OlderSpec:
        file_system_id: str
        iam: IamOptions | None = None

    @dataclass
    class OlderReservation:
        spec: OlderSpec

    assert msgspec.json.decode(msgspec.json.encode(FULL), type=OlderReservation).spec.iam == FULL.spec.iam
    with pytest.raises(msgspec.ValidationError, match="got `array`"):
        msgspec.json.decode(msgspec.json.encode(OF_POD), type=OlderReservation)


def test_missing_file_is_not_an_error(path: Path) -> None:
    found = load_reservations(path)
    assert (found.reservations, found.problems) == (Reservations(), ())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"spec": {"file_system_id": "fs-1]\n[evil"}}, id="ID with a forged section"),
        pytest.param({"spec": {"file_system_id": 7}}, id="number as ID"),
        pytest.param({"spec": {}}, id="no file system"),
        pytest.param({"holders": "all"}, id="text instead of holders"),
        pytest.param({"source": {"kind": "a friend"}}, id="source of a later version"),
        pytest.param({"spec": {"file_system_id": "fs-1", "tenant": "blue"}}, id="field of a later version"),
        pytest.param(
            {"spec": {"file_system_id": "fs-1", "iam": {"profile": "team", "partition": "b"}}},
            id="part of an identity of a later version",
        ),
        pytest.param(
            {"spec": {"file_system_id": "fs-1", "iam": ["team", "web", None, "b"]}},
            id="part of a service account of a later version",
        ),
    ],
)
def test_unreadable_entry_affects_no_other_and_keeps_its_port(changes: dict[str, object], path: Path) -> None:
    save_reservations(path, BOTH)
    broken(path, **changes)
    found = load_reservations(path)
    [port] = {22050, 22051} - found.reservations.ports
    assert len(found.reservations.tunnels) == 1
    assert found.unreadable_ports == {port}
    [problem] = found.problems
    assert str(path) in problem
    # It is still there after the next change, for a version that understands it.
    save_reservations(path, Reservations(), found.unreadable)
    assert load_reservations(path).unreadable == found.unreadable


def test_entry_with_a_field_of_a_later_version_keeps_it(path: Path) -> None:
    save_reservations(path, Reservations.of([PLAIN]))
    spec = {"file_system_id": "fs-1", "tenant": "blue"}
    broken(path, spec=spec)
    found = load_reservations(path)
    assert found.problems == (
        f"a tunnel in {path} cannot be read: spec.tenant: is not known to this version",
    )
    save_reservations(path, Reservations.of([OF_POD]), found.unreadable)
    assert json.loads(path.read_text())["tunnels"][1]["spec"] == spec


def test_fields_without_a_value_distinguish_no_tunnels(path: Path) -> None:
    """A version with another field can be left again, unless a tunnel uses the field."""
    save_reservations(path, Reservations.of([PLAIN]))
    assert json.loads(path.read_text())["tunnels"][0]["spec"] == {"file_system_id": "fs-1"}
    everything = {one.name: getattr(PLAIN.spec, one.name) for one in fields(PLAIN.spec)}
    broken(path, spec={**everything, "tenant": None})
    assert load_reservations(path).reservations == Reservations.of([PLAIN])


def test_second_entry_with_the_same_port_is_ignored(path: Path) -> None:
    save_reservations(path, BOTH)
    broken(path, port=22051)
    found = load_reservations(path)
    assert len(found.reservations.tunnels) == 1
    assert "is given twice" in found.problems[0]


def test_entries_are_not_compared_with_each_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = range(100)
    specs = [TunnelSpec(file_system_id=FileSystemId(f"fs-{number:08x}")) for number in numbers]
    save_reservations(
        path, Reservations.of(Reservation(spec=one, port=22049 + n) for n, one in enumerate(specs))
    )
    compared: list[object] = []
    equal = TunnelSpec.__eq__

    def counted(one: TunnelSpec, other: object) -> bool:
        compared.append(other)
        return equal(one, other)

    monkeypatch.setattr(TunnelSpec, "__eq__", counted)
    assert len(load_reservations(path).reservations.tunnels) == len(specs)
    assert len(compared) <= 3 * len(specs)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', "\0" * 100, '{"version": 1, "tunnels": 3}']
)
def test_previous_file_is_used_if_the_file_cannot_be_read(text: str, path: Path) -> None:
    save_reservations(path, Reservations.of([PLAIN]))
    save_reservations(path, BOTH)
    path.write_text(text)
    found = load_reservations(path)
    assert found.reservations == Reservations.of([PLAIN])
    assert f"{path} cannot be read" in found.problems[0]
    # The next change replaces the broken file, not the good one.
    save_reservations(path, BOTH)
    path.write_text(text)
    assert load_reservations(path).reservations == Reservations.of([PLAIN])


def test_previous_file_is_used_if_the_file_is_missing(path: Path) -> None:
    save_reservations(path, Reservations.of([PLAIN]))
    save_reservations(path, BOTH)
    path.unlink()
    found = load_reservations(path)
    assert found.reservations == Reservations.of([PLAIN])
    assert found.problems == (f"{path} is missing",)


def test_known_fields_of_another_version_are_read(path: Path) -> None:
    save_reservations(path, BOTH)
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "version": 2, "news": True}))
    assert load_reservations(path).reservations == BOTH


def test_file_contains_no_secret(path: Path) -> None:
    save_reservations(path, Reservations.of([replace(FULL, holders=frozenset())]))
    assert set(json.loads(path.read_text())["tunnels"][0]) == {"spec", "port", "holders", "source"}


@given(st.binary(max_size=200))
def test_any_content_is_read_without_an_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.json"
        file.write_bytes(content)
        assert load_reservations(file).reservations == Reservations()
