"""The reservations as a value: equal specs share a port, and held tunnels keep it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import NoTunnelPort
from kube_efs.tunnels.reservations import Holder, PortRange, Reservations, TunnelSpec

PORTS = PortRange(first=22049, last=22058)
FS = FileSystemId("fs-0123456789abcdef0")


def spec(number: int) -> TunnelSpec:
    return TunnelSpec(file_system_id=FS, access_point_id=AccessPointId(f"fsap-{number:017x}"))


def held(*numbers: int, by: str = "pod") -> Reservations:
    reservations = Reservations()
    for number in numbers:
        reservations = reservations.hold(spec(number), Holder(by), ports=PORTS, avoid=())
    return reservations


def port_of(reservations: Reservations, number: int) -> int:
    return reservations.tunnels[spec(number).name].port


def test_equal_specs_share_a_tunnel() -> None:
    reservations = held(1).hold(spec(1), Holder("other"), ports=PORTS, avoid=())
    [tunnel] = reservations.tunnels.values()
    assert tunnel.holders == {"pod", "other"}


def test_avoided_port_is_not_assigned_but_kept_if_assigned() -> None:
    port = port_of(held(1), 1)
    assert port_of(Reservations().hold(spec(1), Holder("pod"), ports=PORTS, avoid=[port]), 1) != port
    assert port_of(held(1).hold(spec(1), Holder("x"), ports=PORTS, avoid=[port]), 1) == port


def test_closed_tunnel_gets_the_same_port_again() -> None:
    before = held(1, 2)
    after = before.release([Holder("pod")]).close([spec(1).name])
    assert set(after.tunnels) == {spec(2).name}
    assert port_of(after.hold(spec(1), Holder("pod"), ports=PORTS, avoid=()), 1) == port_of(before, 1)


def test_held_tunnel_is_not_closed() -> None:
    assert held(1).close([spec(1).name]) == held(1)


def test_full_range_is_an_error() -> None:
    with pytest.raises(NoTunnelPort) as full:
        held(*range(11))
    assert str(full.value) == "KUBE_EFS_TUNNEL_PORTS: '22049-22058' has no free port; use a wider range"


@given(st.text())
def test_every_port_of_the_range_is_tried_once(key: str) -> None:
    assert sorted(PORTS.starting_at(key)) == list(range(22049, 22059))


class Keeping(RuleBasedStateMachine):
    """Ensure, release, close and restart in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.reservations = Reservations()
        self.holding: dict[int, set[str]] = {}
        self.ports: dict[int, int] = {}

    @rule(
        number=st.integers(0, 12),
        holder=st.sampled_from("abc"),
        avoid=st.sets(st.sampled_from(range(22049, 22059))),
    )
    def ensure(self, number: int, holder: str, avoid: set[int]) -> None:
        try:
            self.reservations = self.reservations.hold(spec(number), Holder(holder), ports=PORTS, avoid=avoid)
        except NoTunnelPort:
            assert len(self.reservations.ports | avoid) == len(PORTS)
            return
        port = port_of(self.reservations, number)
        if number in self.ports:
            assert port == self.ports[number]
        else:
            assert port not in avoid
        self.ports[number] = port
        self.holding.setdefault(number, set()).add(holder)

    @rule(holder=st.sampled_from("abc"))
    def release(self, holder: str) -> None:
        self.reservations = self.reservations.release([Holder(holder)])
        for holders in self.holding.values():
            holders.discard(holder)

    @rule(numbers=st.sets(st.integers(0, 12)))
    def close(self, numbers: set[int]) -> None:
        self.reservations = self.reservations.close([spec(number).name for number in numbers])
        for number in numbers:
            if not self.holding.get(number):
                self.holding.pop(number, None)
                self.ports.pop(number, None)

    @invariant()
    def nothing_held_is_gone_and_no_port_is_shared(self) -> None:
        assert {number: port_of(self.reservations, number) for number in self.ports} == self.ports
        assert len(self.reservations.ports) == len(self.reservations.tunnels) == len(self.ports)
        for number, holders in self.holding.items():
            assert self.reservations.tunnels[spec(number).name].holders == holders


TestReservations = Keeping.TestCase
