"""The shard of each tunnel: limits, stability, and the end of shards that are nearly empty."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.tunnels.data_plane import CertificateFile, TunnelService
from kube_efs.tunnels.stunnel.assignment import (
    SHARD_SIZE,
    assign,
    find_merge,
    mergeable,
    shard_number,
    shard_path,
)

CONF = Path("/run/stunnel.conf")
CERTIFICATE = CertificateFile(path=Path("/c.pem"), serial=1, not_after=datetime(2030, 1, 1, tzinfo=UTC))


def service(name: str, *, on_demand: bool = True) -> TunnelService:
    return TunnelService(
        name=name,
        file_system_id=FileSystemId("fs-1"),
        port=20490,
        addresses=("10.0.1.1",),
        check_host="fs-1.efs.us-east-1.amazonaws.com",
        ca_file=Path("/ca.pem"),
        certificate=CERTIFICATE if on_demand else None,
    )


def on_demand(names: Iterable[str]) -> list[TunnelService]:
    return [service(name) for name in names]


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"fs-{number:04}" for number in range(first, first + count)]


def sizes(assigned: Mapping[str, int]) -> dict[int, int]:
    return dict(Counter(assigned.values()))


@pytest.mark.parametrize(
    ("path", "number"),
    [
        pytest.param("/run/stunnel.conf", 0, id="the older system's file"),
        pytest.param("/run/stunnel-1.conf", 1, id="first shard of tunnels on demand"),
        pytest.param("/run/stunnel-12.conf", 12, id="two digits"),
        pytest.param("/run/stunnel-0.conf", None, id="shard 0 with a number"),
        pytest.param("/run/stunnel-01.conf", None, id="leading zero"),
        pytest.param("/run/stunnel-x.conf", None, id="no number"),
        pytest.param("/run/stunnel-².conf", None, id="digit that is not ASCII"),
        pytest.param("/run/stunnel-1.conf.new", None, id="another suffix"),
        pytest.param("/tmp/stunnel-1.conf", None, id="another directory"),
        pytest.param("/run/other.conf", None, id="another name"),
    ],
)
def test_number_is_in_the_name_of_the_file(path: str, number: int | None) -> None:
    assert shard_number(CONF, Path(path)) == number
    if number is not None:
        assert shard_path(CONF, number) == Path(path)


def test_tunnels_of_the_config_map_stay_together_in_the_first_shard() -> None:
    own = [service(name, on_demand=False) for name in numbered(40)]
    found = assign([*own, *on_demand(["fs-x"])], {})
    assert sizes(found) == {0: 40, 1: 1}
    assert found["fs-x"] == 1


def test_new_tunnel_goes_to_the_fullest_shard_with_room() -> None:
    before = dict.fromkeys(numbered(3), 1) | dict.fromkeys(numbered(9, 10), 2)
    before |= dict.fromkeys(numbered(SHARD_SIZE, 100), 3)
    assert assign(on_demand([*before, "fs-new"]), before)["fs-new"] == 2


def test_new_shard_gets_the_first_unused_number() -> None:
    before = dict.fromkeys(numbered(SHARD_SIZE), 1) | dict.fromkeys(numbered(SHARD_SIZE, 100), 3)
    assert assign(on_demand([*before, "fs-new"]), before)["fs-new"] == 2


def test_new_shard_does_not_get_the_number_of_one_that_is_about_to_end() -> None:
    before = dict.fromkeys(numbered(SHARD_SIZE), 1)
    assert assign(on_demand([*before, "fs-new"]), before, running=[0, 1, 2])["fs-new"] == 3


def test_tunnels_that_an_agent_without_shards_has_loaded_stay() -> None:
    before = dict.fromkeys(numbered(30), 0)
    found = assign(on_demand([*before, "fs-new"]), before)
    assert sizes(found) == {0: 30, 1: 1}
    assert mergeable(found) == {"fs-new"}


@pytest.mark.parametrize(
    ("shards", "unused", "merged"),
    [
        pytest.param({1: 10, 2: 2}, [2], {2: 1}, id="nearly empty and unused"),
        pytest.param({1: 10, 2: 2}, [], {}, id="in use"),
        pytest.param({1: 10, 2: 5}, [1, 2], {}, id="not nearly empty"),
        pytest.param({1: 15, 2: 2}, [2], {}, id="no room elsewhere"),
        pytest.param({0: 3, 2: 2}, [0, 2], {}, id="tunnels on demand do not move to shard 0, or from it"),
        pytest.param({1: 2, 2: 2}, [1, 2], {2: 1}, id="one of two, the later one"),
        pytest.param({1: 2, 2: 1, 3: 16}, [1, 2], {2: 1}, id="the smallest one"),
    ],
)
def test_shard_is_merged(shards: dict[int, int], unused: list[int], merged: dict[int, int]) -> None:
    assigned = {f"fs-{number}-{one}": number for number, size in shards.items() for one in range(size)}
    moves = find_merge(assigned, {name for name, number in assigned.items() if number in unused})
    assert {assigned[name]: number for name, number in moves.items()} == merged
    assert len(moves) == sum(shards[number] for number in merged)


@given(st.dictionaries(st.integers(0, 60).map(str), st.integers(1, 5)), st.sets(st.integers(0, 60).map(str)))
def test_merge_moves_only_unused_tunnels_and_keeps_the_limit(
    assigned: dict[str, int], unused: set[str]
) -> None:
    moves = find_merge(assigned, unused)
    assert moves.keys() <= unused
    after = {**assigned, **moves}
    assert all(
        size <= max(SHARD_SIZE, sizes(assigned).get(number, 0)) for number, size in sizes(after).items()
    )
    assert not moves or len(sizes(after)) < len(sizes(assigned))


class Node(RuleBasedStateMachine):
    """Tunnels come and go, and agents follow each other."""

    def __init__(self) -> None:
        super().__init__()
        self.own: set[str] = set()
        self.wanted: set[str] = set()
        self.assigned: Mapping[str, int] = {}

    def _assign(self) -> None:
        services = [*on_demand(self.wanted), *(service(name, on_demand=False) for name in self.own)]
        before, self.assigned = self.assigned, assign(services, self.assigned)
        assert self.assigned.keys() == self.wanted | self.own
        assert all(before[name] == number for name, number in self.assigned.items() if name in before)

    @rule(names=st.sets(st.integers(0, 80).map("fs-{}".format), max_size=40))
    def open_some(self, names: set[str]) -> None:
        self.wanted |= names
        self._assign()

    @rule(names=st.sets(st.integers(0, 80).map("fs-{}".format)))
    def close_some(self, names: set[str]) -> None:
        self.wanted -= names
        self._assign()

    @rule(names=st.sets(st.integers(0, 80).map("own-{}".format)))
    def change_the_config_map(self, names: set[str]) -> None:
        self.own = names
        self._assign()

    @rule(used=st.sets(st.integers(0, 80).map("fs-{}".format)))
    def merge(self, used: set[str]) -> None:
        moves = find_merge(self.assigned, self.wanted - used)
        assert used.isdisjoint(moves)
        self.assigned = {**self.assigned, **moves}

    @rule()
    def restart_the_agent(self) -> None:
        """The next agent knows the shards from the running stunnels only."""
        self.assigned = {name: self.assigned[name] for name in sorted(self.assigned, reverse=True)}
        self._assign()

    @invariant()
    def no_shard_is_too_large(self) -> None:
        assert all(size <= SHARD_SIZE for number, size in sizes(self.assigned).items() if number)

    @invariant()
    def first_shard_has_the_tunnels_of_the_config_map_only(self) -> None:
        assert {name for name, number in self.assigned.items() if number == 0} == self.own


TestNode = Node.TestCase
