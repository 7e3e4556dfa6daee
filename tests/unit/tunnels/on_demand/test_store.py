"""The promises on the disk, whole, broken, and of another time."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.aws.credential_sources import CredentialSource, IamOptions, SourceKind
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId, Region, ZoneName
from kube_efs.tunnels.on_demand.store import load_promises, save_promises
from kube_efs.tunnels.promises import Holder, Promise, Promises, TunnelSpec

FULL = Promise(
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
PLAIN = Promise(spec=TunnelSpec(file_system_id=FileSystemId("fs-1")), port=22051)
BOTH = Promises.of([FULL, PLAIN])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stunnel.demands.json"


def broken(path: Path, **changes: object) -> None:
    """Change the first of the entries in the file."""
    state = json.loads(path.read_text())
    state["tunnels"][0] |= changes
    path.write_text(json.dumps(state))


def test_what_is_saved_is_loaded(path: Path) -> None:
    save_promises(path, BOTH)
    found = load_promises(path)
    assert found.promises == BOTH
    assert (found.unreadable, found.problems) == ((), ())
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_file_is_no_problem(path: Path) -> None:
    found = load_promises(path)
    assert (found.promises, found.problems) == (Promises(), ())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"spec": {"file_system_id": "fs-1]\n[evil"}}, id="an id that forges a section"),
        pytest.param({"spec": {"file_system_id": 7}}, id="an id that is a number"),
        pytest.param({"spec": {}}, id="no file system"),
        pytest.param({"holders": "all"}, id="holders that are a text"),
        pytest.param({"source": {"kind": "a friend"}}, id="a source of a later version"),
    ],
)
def test_one_broken_entry_costs_no_other_and_keeps_its_port(changes: dict[str, object], path: Path) -> None:
    save_promises(path, BOTH)
    broken(path, **changes)
    [port] = {22050, 22051} - {tunnel.port for tunnel in load_promises(path).promises.tunnels.values()}
    found = load_promises(path)
    assert len(found.promises.tunnels) == 1
    assert found.reserved_ports == {port}
    [problem] = found.problems
    assert str(path) in problem
    # It is still there after the next change, for a version that understands it.
    save_promises(path, Promises(), found.unreadable)
    assert load_promises(path).unreadable == found.unreadable


def test_of_two_entries_with_a_port_the_second_is_left_out(path: Path) -> None:
    save_promises(path, BOTH)
    broken(path, port=22051)
    found = load_promises(path)
    assert len(found.promises.tunnels) == 1
    assert "is given twice" in found.problems[0]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', "\0" * 100, '{"version": 1, "tunnels": 3}']
)
def test_a_file_that_is_broken_as_a_whole_is_told_and_the_state_before_is_taken(
    text: str, path: Path
) -> None:
    save_promises(path, Promises.of([PLAIN]))
    save_promises(path, BOTH)
    path.write_text(text)
    found = load_promises(path)
    assert found.promises == Promises.of([PLAIN])
    assert f"{path} cannot be read" in found.problems[0]
    # The next change replaces the broken file, not the good one.
    save_promises(path, BOTH)
    path.write_text(text)
    assert load_promises(path).promises == Promises.of([PLAIN])


def test_another_version_is_read_as_far_as_it_goes(path: Path) -> None:
    save_promises(path, BOTH)
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "version": 2, "news": True}))
    assert load_promises(path).promises == BOTH


def test_nothing_that_is_secret_is_there(path: Path) -> None:
    save_promises(path, Promises.of([replace(FULL, holders=frozenset())]))
    assert set(json.loads(path.read_text())["tunnels"][0]) == {"spec", "port", "holders", "source"}


@given(st.binary(max_size=200))
def test_no_content_makes_it_raise(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.json"
        file.write_bytes(content)
        assert load_promises(file).promises == Promises()
