"""The probed tunnels, with servers that count calls."""

import asyncio
import struct
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels import prober as module
from kube_efs.tunnels.data_plane import DataPlaneReport, TunnelService
from kube_efs.tunnels.options import AMAZON_CA_FILE
from kube_efs.tunnels.prober import Prober

_CALL_BYTES = 44


@dataclass
class Servers:
    """An NFS server for each of these names, which records calls."""

    services: dict[str, TunnelService] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    denying: set[str] = field(default_factory=set)
    _called: list[str] = field(default_factory=list)

    async def start(self, name: str, stack: AsyncExitStack) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._called.append(name)
            call = await reader.readexactly(_CALL_BYTES)
            (xid,) = struct.unpack_from(">I", call, 4)
            accepted = struct.pack(">6I", xid, 1, 0, 0, 0, 0)
            if name in self.denying:
                accepted = struct.pack(">5I", xid, 1, 1, 1, 5)
            if name not in self.broken:
                writer.write(struct.pack(">I", 0x8000_0000 | len(accepted)) + accepted)
            writer.close()

        server = await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0))
        self.services[name] = TunnelService(
            name=name,
            file_system_id=FileSystemId(name),
            port=server.sockets[0].getsockname()[1],
            addresses=("10.0.1.1",),
            check_host=f"{name}.efs.us-east-1.amazonaws.com",
            ca_file=AMAZON_CA_FILE,
        )

    def report(self, *names: str, pid: int = 1) -> DataPlaneReport:
        return DataPlaneReport(
            pids=(pid,),
            loaded={name: self.services[name] for name in names},
            pid_by_service=dict.fromkeys(names, pid),
        )

    def called(self) -> list[str]:
        found, self._called = sorted(self._called), []
        return found


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        found = Servers()
        for name in ("fs-1", "fs-2", "fs-3"):
            await found.start(name, stack)
        yield found


@pytest.fixture
def prober() -> Prober:
    return Prober(TunnelMetrics(CollectorRegistry()), timeout_seconds=5, round_seconds=60)


def up(prober: Prober) -> Mapping[str, bool]:
    return {name: result.ok for name, result in prober.results.items()}


async def test_only_new_tunnels_are_probed(servers: Servers, prober: Prober) -> None:
    await prober.probe_new(servers.report("fs-1", "fs-2"))
    assert servers.called() == ["fs-1", "fs-2"]
    await prober.probe_new(servers.report("fs-1", "fs-2", "fs-3"))
    assert servers.called() == ["fs-3"]
    assert up(prober) == {"fs-1": True, "fs-2": True, "fs-3": True}


async def test_tunnel_that_changed_or_moved_to_another_stunnel_is_probed(
    servers: Servers, prober: Prober
) -> None:
    await prober.probe_new(servers.report("fs-1", "fs-2"))
    servers.called()
    servers.services["fs-1"] = replace(servers.services["fs-1"], addresses=("10.0.2.1",))
    await prober.probe_new(servers.report("fs-1", "fs-2"))
    assert servers.called() == ["fs-1"]
    await prober.probe_new(servers.report("fs-1", "fs-2", pid=2))
    assert servers.called() == ["fs-1", "fs-2"]


async def test_removed_tunnel_has_no_result_and_is_probed_when_it_is_back(
    servers: Servers, prober: Prober
) -> None:
    await prober.probe_new(servers.report("fs-1", "fs-2"))
    servers.called()
    await prober.probe_new(servers.report("fs-1"))
    assert up(prober) == {"fs-1": True}
    await prober.probe_new(servers.report("fs-1", "fs-2"))
    assert servers.called() == ["fs-2"]


async def test_tunnel_whose_probe_failed_is_probed_again(servers: Servers, prober: Prober) -> None:
    servers.broken.add("fs-1")
    await prober.probe_new(servers.report("fs-1", "fs-2"))
    assert up(prober) == {"fs-1": False, "fs-2": True}
    assert servers.called() == ["fs-1", "fs-2"]
    servers.broken.clear()
    await prober.probe_new(servers.report("fs-1", "fs-2"))
    assert servers.called() == ["fs-1"]
    assert up(prober) == {"fs-1": True, "fs-2": True}


async def test_denied_tunnel_is_probed_in_rounds_only(servers: Servers, prober: Prober) -> None:
    servers.denying.add("fs-1")
    await prober.probe_new(servers.report("fs-1", "fs-2"))
    assert prober.results["fs-1"].is_denied
    servers.called()
    await prober.probe_new(servers.report("fs-1", "fs-2", "fs-3"))
    assert servers.called() == ["fs-3"]


async def one_round(
    prober: Prober,
    report: DataPlaneReport,
    *,
    answering: Collection[int] = (),
    unreachable: Collection[str] = (),
) -> None:
    await prober.probe_round(report, answering=answering, unreachable=unreachable)


async def test_tunnels_of_the_same_mount_targets_take_turns(servers: Servers, prober: Prober) -> None:
    report = servers.report("fs-1", "fs-2", "fs-3")
    await one_round(prober, report)
    assert servers.called() == ["fs-1", "fs-2", "fs-3"]
    for name in ("fs-1", "fs-2", "fs-3", "fs-1"):
        await one_round(prober, report)
        assert servers.called() == [name]


async def test_each_list_of_mount_targets_is_probed_in_each_round(servers: Servers, prober: Prober) -> None:
    servers.services["fs-3"] = replace(servers.services["fs-3"], addresses=("10.0.2.1",))
    report = servers.report("fs-1", "fs-2", "fs-3")
    await one_round(prober, report)
    servers.called()
    await one_round(prober, report)
    assert servers.called() == ["fs-1", "fs-3"]
    await one_round(prober, report)
    assert servers.called() == ["fs-2", "fs-3"]


async def test_many_lists_of_mount_targets_take_turns(
    servers: Servers, prober: Prober, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LISTS", 2)
    for number, name in enumerate(servers.services):
        servers.services[name] = replace(servers.services[name], addresses=(f"10.0.{number}.1",))
    report = servers.report("fs-1", "fs-2", "fs-3")
    await one_round(prober, report)
    servers.called()
    for names in (["fs-1", "fs-2"], ["fs-1", "fs-3"], ["fs-2", "fs-3"]):
        await one_round(prober, report)
        assert servers.called() == names


async def test_failure_of_one_tunnel_is_that_of_its_mount_targets_until_each_is_probed(
    servers: Servers, prober: Prober
) -> None:
    report = servers.report("fs-1", "fs-2", "fs-3")
    await one_round(prober, report)
    servers.called()
    servers.broken |= {"fs-1", "fs-2"}
    await one_round(prober, report)
    assert servers.called() == ["fs-1", "fs-2", "fs-3"]
    assert up(prober) == {"fs-1": False, "fs-2": False, "fs-3": True}
    servers.broken.clear()
    await one_round(prober, report)
    assert servers.called() == ["fs-1", "fs-2", "fs-3"]
    assert up(prober) == {"fs-1": True, "fs-2": True, "fs-3": True}


async def test_tunnel_that_carries_answers_is_not_probed(servers: Servers, prober: Prober) -> None:
    report = servers.report("fs-1", "fs-2")
    await one_round(prober, report)
    servers.called()
    answering = [service.port for service in report.loaded.values()]
    await one_round(prober, report, answering=answering)
    assert servers.called() == []
    assert up(prober) == {"fs-1": True, "fs-2": True}
    await one_round(prober, report, answering=answering[:1])
    assert servers.called() == ["fs-2"]


async def test_answers_do_not_replace_the_probe_of_a_failed_tunnel(servers: Servers, prober: Prober) -> None:
    servers.broken.add("fs-1")
    report = servers.report("fs-1")
    for _ in range(2):
        await one_round(prober, report, answering=[service.port for service in report.loaded.values()])
    assert servers.called() == ["fs-1", "fs-1"]


async def test_all_tunnels_of_an_unreachable_mount_target_are_probed(
    servers: Servers, prober: Prober
) -> None:
    servers.services["fs-3"] = replace(servers.services["fs-3"], addresses=("10.0.2.1", "10.0.1.1"))
    report = servers.report("fs-1", "fs-2", "fs-3")
    await one_round(prober, report)
    await one_round(prober, report)
    servers.called()
    servers.broken |= {"fs-1", "fs-2"}
    await one_round(prober, report, unreachable={"10.0.1.1"})
    assert servers.called() == ["fs-1", "fs-2", "fs-3"]
    assert up(prober) == {"fs-1": False, "fs-2": False, "fs-3": True}


async def test_round_ends_with_many_failing_tunnels_and_the_next_one_continues(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the checks of a node with hundreds of them would look stuck, and its agent be restarted."""
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    prober = Prober(TunnelMetrics(CollectorRegistry()), timeout_seconds=5, round_seconds=0)
    report = servers.report("fs-1", "fs-2", "fs-3")
    servers.broken |= {"fs-1", "fs-2", "fs-3"}
    called = []
    for _ in range(3):
        await one_round(prober, report)
        called += servers.called()
    assert sorted(called) == ["fs-1", "fs-2", "fs-3"]
    assert up(prober) == {"fs-1": False, "fs-2": False, "fs-3": False}


async def test_many_tunnels_that_begin_to_fail_are_found_in_several_rounds(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    prober = Prober(TunnelMetrics(CollectorRegistry()), timeout_seconds=5, round_seconds=0)
    report = servers.report("fs-1", "fs-2", "fs-3")
    await one_round(prober, report)
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    servers.broken |= {"fs-1", "fs-2", "fs-3"}
    servers.called()
    await one_round(prober, report)
    assert len(servers.called()) == 2  # one of the list, and one of the others
    for _ in range(2):
        await one_round(prober, report)
    assert up(prober) == {"fs-1": False, "fs-2": False, "fs-3": False}
