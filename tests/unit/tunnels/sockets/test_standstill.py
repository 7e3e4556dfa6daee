"""When stunnel is doubted: connections that wait to be accepted in every reading."""

import pytest

from kube_efs.tunnels.sockets.ports import PortReading
from kube_efs.tunnels.sockets.standstill import Standstill


def waiting(*ports: int) -> PortReading:
    return PortReading(connections={}, busy=frozenset(), listening=frozenset(), unanswered=frozenset(ports))


@pytest.mark.parametrize(
    ("readings", "lasts"),
    [
        pytest.param([waiting(1), waiting(1), waiting(1), waiting(1)], True, id="waiting all the time"),
        pytest.param([waiting(1), waiting(1), waiting(1)], False, id="not for long enough"),
        pytest.param([waiting(1), waiting(), waiting(1), waiting(1)], False, id="accepted meanwhile"),
        pytest.param([waiting(1), waiting(2), waiting(1), waiting(2)], False, id="never the same"),
        pytest.param([waiting(1), None, None, waiting(1)], True, id="readings that failed tell nothing"),
        pytest.param([waiting(3)] * 4, False, id="somebody else's port"),
        pytest.param([], False, id="no reading yet"),
    ],
)
def test_stunnel_stands_still_when_connections_wait_in_all_readings(
    readings: list[PortReading | None], lasts: bool
) -> None:
    found = Standstill()
    for number, reading in enumerate(readings):
        found = found.after(reading, {1, 2}, now=100.0 + number * 10)
    assert found.lasts(30, now=100.0 + (len(readings) - 1) * 10) is lasts
