"""The state of mount targets changes neither too early nor too late."""

import asyncio
import errno
import math
import os
import selectors
import socket
import time
from typing import Any

import pytest

from kube_efs.model.efs.ids import Region
from kube_efs.tunnels.mount_targets import Reachability, probe_addresses
from kube_efs.tunnels.options import TunnelOptions


def after_rounds(rounds: str, *, down: int = 2, up: int = 3) -> str:
    """One letter for each round: ``+`` accepted, ``-`` not; returns ``U`` or ``D`` for each."""
    reachability, verdicts = Reachability(), ""
    for sign in rounds:
        reachability = reachability.after({"a": sign == "+"}, rounds_until_down=down, rounds_until_up=up)
        verdicts += "D" if "a" in reachability.down else "U"
    return verdicts


@pytest.mark.parametrize(
    ("rounds", "verdicts"),
    [
        pytest.param("++++", "UUUU", id="always reachable"),
        pytest.param("+-+-+-", "UUUUUU", id="single failures do not count"),
        pytest.param("+--", "UUD", id="two failures in a row count"),
        pytest.param("--+-+", "UDDDD", id="single successes do not count"),
        pytest.param("--+++", "UDDDU", id="three successes in a row count"),
        pytest.param("--+++--", "UDDDUUD", id="count restarts after each verdict"),
        pytest.param("--++-+++", "UDDDDDDU", id="failure restarts the count"),
    ],
)
def test_state_of_a_mount_target_changes_after_some_rounds(rounds: str, verdicts: str) -> None:
    assert after_rounds(rounds) == verdicts


def test_one_round_is_enough_if_configured() -> None:
    assert after_rounds("-+-", down=1, up=1) == "DUD"


def test_addresses_are_independent_and_removed_when_untested() -> None:
    reachability = Reachability()
    for _ in range(2):
        reachability = reachability.after(
            {"a": False, "b": True, "c": False}, rounds_until_down=2, rounds_until_up=3
        )
    assert reachability.down == {"a", "c"}
    reachability = reachability.after({"b": True, "c": False}, rounds_until_down=2, rounds_until_up=3)
    assert reachability.down == {"c"}
    assert dict(reachability.contrary_rounds) == {}


async def test_listeners_accept_and_others_do_not() -> None:
    async def drop(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listener = await asyncio.start_server(drop, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    found = await probe_addresses({"127.0.0.1", "127.0.0.2"}, timeout_seconds=5, port=port)
    listener.close()
    await listener.wait_closed()
    assert dict(found) == {"127.0.0.1": True, "127.0.0.2": False}


async def test_listener_that_does_not_answer_is_unreachable() -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):  # a full queue drops further calls, as a lost host does
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        found = await probe_addresses({"127.0.0.1"}, timeout_seconds=0.05, port=full.getsockname()[1])
    assert dict(found) == {"127.0.0.1": False}


async def test_listener_that_accepts_in_time_is_reachable_for_an_agent_without_a_processor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        round_ = asyncio.create_task(probe_addresses({"127.0.0.1"}, timeout_seconds=0.05, port=port))
        with selectors.DefaultSelector() as calls:
            calls.register(listener, selectors.EVENT_READ)
            while not calls.select(0):  # noqa: ASYNC110 - the kernel reports it to no event of the loop
                await asyncio.sleep(0)
        time.sleep(0.06)  # noqa: ASYNC251 - as a loop that gets no processor: its time is up before it looks
        assert dict(await round_) == {"127.0.0.1": True}


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["::1"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "::1"]],
    ids=["IPv4", "IPv6", "the second one", "the first one"],
)
async def test_name_is_reachable_if_one_of_its_addresses_is(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    accepting = addresses[0] if "::1" in addresses else addresses[-1]
    family = socket.AF_INET6 if ":" in accepting else socket.AF_INET
    with socket.create_server((accepting, 0), family=family) as listener:
        port = listener.getsockname()[1]
        resolve(monkeypatch, addresses)
        found = await probe_addresses({"fs-1.example.com"}, timeout_seconds=5, port=port)
    assert dict(found) == {"fs-1.example.com": True}


def resolve(monkeypatch: pytest.MonkeyPatch, addresses: list[str], *, seconds: float = 0.0) -> None:
    """Let each name have these addresses, which the resolver returns after the time."""
    of_addresses = socket.getaddrinfo

    def answer(_name: str, port: int, *_: object) -> list[Any]:
        time.sleep(seconds)
        return [one for address in addresses for one in of_addresses(address, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


async def test_node_without_a_family_of_addresses_checks_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutIpv6(socket.socket):
        def __init__(self, family: int = -1, *rest: Any, **named: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *rest, **named)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(socket, "socket", WithoutIpv6)
        found = await probe_addresses({"127.0.0.1", "fd00::1"}, timeout_seconds=5, port=port)
    assert dict(found) == {"127.0.0.1": True, "fd00::1": False}


async def test_slow_resolver_takes_nothing_of_the_time_for_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        resolve(monkeypatch, ["127.0.0.1"], seconds=0.1)
        found = await probe_addresses(
            {"fs-1.example.com"}, timeout_seconds=0.05, port=listener.getsockname()[1]
        )
    assert dict(found) == {"fs-1.example.com": True}


async def test_no_round_is_needed_without_addresses() -> None:
    assert dict(await probe_addresses((), timeout_seconds=1)) == {}


async def test_thousands_of_unreachable_addresses_take_less_than_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After 70 s, the checks would look stuck, and the kubelet would restart the container of the tunnels."""
    trying, most = 0, 0

    async def wait(*_: object) -> None:
        nonlocal trying, most
        trying += 1
        most = max(most, trying)
        try:
            await asyncio.Event().wait()
        finally:
            trying -= 1

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", wait)
    addresses = {f"10.0.{number // 250}.{number % 250}" for number in range(3000)}
    found = await probe_addresses(addresses, timeout_seconds=0.01)
    assert not any(found.values())
    timeouts = math.ceil(len(addresses) / most)
    assert timeouts * TunnelOptions(region=Region("us-east-1")).connect_timeout_seconds < 60
