"""Lookups of names that nobody answers hold up neither other threads nor the end of the process."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import aiohttp
import pytest

from kube_efs import event_loop
from kube_efs.model.efs.ids import SubnetId
from kube_efs.tunnels.mount_targets import Candidate, Nearness, probe_addresses
from kube_efs.tunnels.on_demand.tunnels import check_resolvable

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 2049))]
STUCK_PROCESS = """
import asyncio, socket, threading
from kube_efs import event_loop
socket.getaddrinfo = lambda *_: threading.Event().wait()
async def look_up():
    for _ in range(2):
        try:
            async with asyncio.timeout(0.1):
                await asyncio.get_running_loop().getaddrinfo("fs-1.example.com", 2049)
        except TimeoutError:
            print("late")
event_loop.run(look_up())
"""


class Dns:
    """A resolver that answers when it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked: list[str] = []
        self.threads: set[str] = set()

    def getaddrinfo(self, host: str, *_: object) -> list[object]:
        self.asked.append(host)
        self.threads.add(threading.current_thread().name)
        assert self.may_answer.wait(60)
        if host == "unknown":
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return list(FOUND)

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(10):
            while len(self.asked) < times:  # noqa: ASYNC110 - other threads add to it
                await asyncio.sleep(0.001)


def mount_target(name: str) -> Candidate:
    return Candidate(address=name, subnet_id=SubnetId(""), zone=None, nearness=Nearness.OTHER_ZONE)


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    dns = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", dns.getaddrinfo)
    yield dns
    dns.may_answer.set()


def test_threads_are_free_for_other_work_while_dns_does_not_answer(dns: Dns) -> None:
    async def work() -> int:
        names = [f"fs-{number}.example.com" for number in range(100)]
        probing = asyncio.create_task(probe_addresses(names, timeout_seconds=0.1))
        await dns.until_asked(8)
        async with asyncio.timeout(10):
            return await asyncio.to_thread(probing.cancel) and len(dns.asked)

    assert event_loop.run(work()) == 8


def test_lookup_that_is_cancelled_before_its_start_is_dropped(dns: Dns) -> None:
    async def work() -> None:
        look_up = asyncio.get_running_loop().getaddrinfo
        lookups = [asyncio.create_task(look_up(f"fs-{number}", 2049)) for number in range(20)]
        await dns.until_asked(16)
        for one in lookups:
            one.cancel()
        await asyncio.wait(lookups)
        dns.may_answer.set()
        assert await look_up("fs-21", 2049) == FOUND

    event_loop.run(work())
    assert sorted(dns.asked) == sorted([*(f"fs-{number}" for number in range(16)), "fs-21"])


def test_probes_without_an_answer_do_not_hold_up_other_names(dns: Dns) -> None:
    """A forwarder for one domain does not answer; the pods of others need their names."""

    async def work() -> None:
        names = [f"fs-{number}.dead.example.com" for number in range(20)]
        probing = asyncio.create_task(probe_addresses(names, timeout_seconds=2))
        await dns.until_asked(8)
        probing.cancel()  # at the end of the round; their threads still wait
        probing = asyncio.create_task(probe_addresses(names, timeout_seconds=2))
        for number in range(8):
            first = asyncio.create_task(check_resolvable(mount_target(f"fs-{number}.example.com")))
            await dns.until_asked(9 + number)
            first.cancel()
        assert dns.asked == [*names[:8], *(f"fs-{number}.example.com" for number in range(8))]
        probing.cancel()

    event_loop.run(work())


def test_callers_of_a_name_share_its_lookup(dns: Dns) -> None:
    async def work() -> None:
        look_up = asyncio.get_running_loop().getaddrinfo
        lookups = [asyncio.create_task(look_up("fs-1", 2049)) for _ in range(20)]
        await dns.until_asked(1)
        lookups[0].cancel()
        dns.may_answer.set()
        first, *others = await asyncio.gather(*lookups, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert others == [FOUND] * 19
        assert await look_up("fs-1", 2049) == FOUND  # nothing is remembered

    event_loop.run(work())
    assert dns.asked == ["fs-1", "fs-1"]


def test_name_that_a_probe_waits_for_is_looked_up_at_once_for_another_caller(dns: Dns) -> None:
    async def work() -> None:
        names = [f"fs-{number}" for number in range(20)]
        probing = asyncio.create_task(probe_addresses(names, timeout_seconds=2))
        await dns.until_asked(8)
        mine = asyncio.create_task(check_resolvable(mount_target("fs-19")))
        await dns.until_asked(9)
        assert dns.asked[8] == "fs-19"
        mine.cancel()
        probing.cancel()

    event_loop.run(work())


def test_answers_and_errors_are_those_of_the_resolver(dns: Dns) -> None:
    dns.may_answer.set()

    async def work() -> None:
        look_up = asyncio.get_running_loop().getaddrinfo
        for _ in range(20):
            with pytest.raises(socket.gaierror, match="not known"):
                await look_up("unknown", 2049)
        assert await asyncio.gather(*(look_up(f"fs-{number}", 2049) for number in range(50))) == [FOUND] * 50

    event_loop.run(work())


def test_clients_of_http_look_names_up_in_these_threads(dns: Dns) -> None:
    dns.may_answer.set()

    async def work() -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get("http://sts.example.com:1/")

    event_loop.run(work())
    assert (dns.asked, dns.threads) == (["sts.example.com"], {"name-lookup"})


def test_end_of_the_process_waits_for_no_lookup() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK_PROCESS],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "late\nlate\n", "")
