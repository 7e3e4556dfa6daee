"""Ranges of loopback addresses: nobody gets one that is taken."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from fake_efs.errors import PlatformError
from fake_efs.service import LoopbackRange


@pytest.fixture
def taken() -> Iterator[LoopbackRange]:
    taken = LoopbackRange.acquire()
    yield taken
    taken.release()


def second_octet(of: LoopbackRange) -> int:
    return of.network.network_address.packed[1]


def test_a_range_is_a_loopback_network_of_65536_addresses(taken: LoopbackRange) -> None:
    assert taken.network.is_loopback
    assert taken.network.prefixlen == 16
    assert 16 <= second_octet(taken) <= 250


def test_a_taken_range_is_passed_over(taken: LoopbackRange) -> None:
    free = LoopbackRange.acquire()
    octet = second_octet(free)
    free.release()
    with closing(LoopbackRange.acquire([second_octet(taken), octet]).claim) as claim:
        assert claim.getsockname() == (f"127.{octet}.0.1", 2049)


def test_no_free_range_is_reported_with_the_remedy(taken: LoopbackRange) -> None:
    with pytest.raises(PlatformError, match=r"2049 is taken .*; stop the NFS server of this machine"):
        LoopbackRange.acquire([second_octet(taken)])


def test_a_released_range_is_free_again(taken: LoopbackRange) -> None:
    taken.release()
    again = LoopbackRange.acquire([second_octet(taken)])
    assert again.network == taken.network
    again.release()


def test_a_listener_on_the_range_is_noticed() -> None:
    free = LoopbackRange.acquire()
    free.release()
    with socket.create_server((str(free.network[1]), 2049)), pytest.raises(PlatformError):
        LoopbackRange.acquire([second_octet(free)])
