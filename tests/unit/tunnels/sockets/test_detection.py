"""Detection of unused tunnels: many readings in a row over a long time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.tunnels.sockets.detection import IdlePolicy, IdlePorts, StalledPorts
from kube_efs.tunnels.sockets.ports import PortReading

POLICY = IdlePolicy(seconds=180, readings=6)
PORT = 22049


def reading(*busy: int) -> PortReading:
    return PortReading(connections={}, busy=frozenset(busy), listening=frozenset({PORT}))


def after(*looks: tuple[float, PortReading | None]) -> bool:
    idle_ports, now = IdlePorts(), 0.0
    for now, found in looks:
        idle_ports = idle_ports.after(found, [PORT], now=now)
    return PORT in idle_ports.unused(POLICY, now=now)


def every(seconds: float, until: float) -> list[tuple[float, PortReading | None]]:
    return [(step * seconds, reading()) for step in range(int(until / seconds) + 1)]


@pytest.mark.parametrize(
    ("looks", "closes"),
    [
        pytest.param(every(10, 180), True, id="idle for three minutes"),
        pytest.param(every(10, 170), False, id="not yet for three minutes"),
        pytest.param([(0, reading()), (500, reading())], False, id="too few readings"),
        pytest.param([*every(10, 170), (180, reading(PORT))], False, id="connected in the last reading"),
        pytest.param([*every(10, 170), (175, None), (180, reading())], False, id="failed reading"),
        pytest.param([(0, reading(PORT)), *every(10, 180)[1:]], False, id="connected in the first reading"),
        pytest.param([], False, id="no reading"),
    ],
)
def test_idle_time_determines_when_a_tunnel_is_closed(
    looks: list[tuple[float, PortReading | None]], *, closes: bool
) -> None:
    assert after(*looks) == closes


def test_held_tunnel_restarts_its_idle_time() -> None:
    idle_ports = IdlePorts()
    for now in range(0, 180, 10):
        idle_ports = idle_ports.after(reading(), [PORT], now=now)
    idle_ports = idle_ports.after(reading(), [], now=180)
    idle_ports = idle_ports.after(reading(), [PORT], now=190)
    assert idle_ports.unused(POLICY, now=190) == frozenset()


def test_removed_port_restarts_its_idle_time() -> None:
    idle_ports = IdlePorts()
    for now in range(0, 180, 10):
        idle_ports = idle_ports.after(reading(), [PORT], now=now)
    idle_ports = idle_ports.keep_only([PORT + 1]).after(reading(), [PORT], now=180)
    assert idle_ports.unused(POLICY, now=180) == frozenset()


@given(st.lists(st.tuples(st.floats(0.1, 100), st.sampled_from(["idle", "busy", "failed"])), max_size=60))
def test_tunnel_is_not_closed_within_three_minutes_of_a_connection_or_failure(
    looks: list[tuple[float, str]],
) -> None:
    idle_ports, now, clear_since = IdlePorts(), 0.0, 0.0
    for step, kind in looks:
        now += step
        found = {"idle": reading(), "busy": reading(PORT), "failed": None}[kind]
        idle_ports = idle_ports.after(found, [PORT], now=now)
        if kind != "idle":
            clear_since = now
        if PORT in idle_ports.unused(POLICY, now=now):
            assert now - clear_since >= 180


def waiting(*ports: int) -> PortReading:
    return PortReading(connections={}, busy=frozenset(), listening=frozenset(), unanswered=frozenset(ports))


@pytest.mark.parametrize(
    ("readings", "lasts"),
    [
        pytest.param([waiting(1), waiting(1), waiting(1), waiting(1)], True, id="waiting in all readings"),
        pytest.param([waiting(1), waiting(1), waiting(1)], False, id="not long enough"),
        pytest.param([waiting(1), waiting(), waiting(1), waiting(1)], False, id="accepted in between"),
        pytest.param([waiting(1), waiting(2), waiting(1), waiting(2)], False, id="different connections"),
        pytest.param([waiting(1), None, None, waiting(1)], True, id="failed readings are ignored"),
        pytest.param([waiting(3)] * 4, False, id="foreign port"),
        pytest.param([], False, id="no reading yet"),
    ],
)
def test_stunnel_hangs_when_connections_wait_in_all_readings(
    readings: list[PortReading | None], lasts: bool
) -> None:
    found = StalledPorts()
    for number, reading in enumerate(readings):
        found = found.after(reading, {1, 2}, now=100.0 + number * 10)
    now = 100.0 + (len(readings) - 1) * 10
    assert found.longer_than(30, now=now) == ({1} if lasts else set())
    assert found.forget({1}).longer_than(30, now=now) == frozenset()
