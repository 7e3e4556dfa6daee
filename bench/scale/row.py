"""What a large cluster costs the API server, AWS, the controller and a node.

Sizes are BENCH_NODES, BENCH_FILE_SYSTEMS, BENCH_VOLUMES, BENCH_CLAIMS, BENCH_USED (file systems with tunnel
volumes, which each node serves), BENCH_PROCESSES (that the agents share) and BENCH_IDLE_SECONDS.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.claiming import Load, orders
from bench.figures import Figure, Row, at_most, exactly, plain
from bench.latencies import percentile, rate, spread
from bench.processes import cpu_seconds, megabytes_in_parts, resident_megabytes
from bench.scale.api_server import Reading
from bench.scale.cluster import ScaleCluster, Sizes
from tests.scenarios import csi_steps, steps

from fake_efs.process import ChildProcess
from kube_efs.controllers.targets_size import LIMIT_BYTES
from kube_efs.model.efs.ids import FileSystemId
from kube_efs_lab.programs import NAMES

_LOOK_SECONDS: Final = 0.5
# What all statuses and counters cost the API server must not show in the figures.
_RARE_LOOK_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 900.0
# For each claim, Kubernetes' binder looks through all volumes.
_CLAIMS_PATIENCE_SECONDS: Final = 2400.0
# Longer than the probe interval of an agent, and the delay of its status after it.
_SETTLE_SECONDS: Final = 20.0
_HOUR: Final = 3600.0
# Of the agents: their ConfigMap, their status, events of their nodes.
_OF_AGENTS: Final = ("configmaps", "events", "nodes")
# Less than a tenth of what others have measured; AWS publishes no limit.
_AWS_A_SECOND_MOST: Final = 1.0


@dataclass(slots=True)
class _Phase:
    """What the API server did while something happened; ``cost`` is there after it."""

    seconds: float = 0.0
    cost: Reading = field(default_factory=Reading)
    refused_twice: int = 0


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """The figures, at the sizes of the environment."""
    sizes = Sizes.of(os.environ)
    async with ScaleCluster.of(folder) as cluster:
        systems = await cluster.account.file_systems(sizes.file_systems)
        used = systems[: sizes.used]
        async with _phase(cluster) as phase:
            await cluster.start_controller()
            await cluster.config_map()
        yield plain(f"first discovery of {len(systems):,} file systems", phase.seconds, "s")
        for figure in _config_map(len(systems), await cluster.config_map()):
            yield figure
        for one in used:
            await cluster.use(one)
        await cluster.nodes(["alone"])
        alone = await cluster.start_agents(["alone"], folder / "alone")
        address = await _first_address(cluster, used[0])
        await _until(lambda: _is_everywhere(cluster, address, 1), "the first agent serves")
        before = await _used_by(alone)
        for figure in _agent("without other nodes and volumes", before):
            yield figure
        names = [f"node-{number:05}" for number in range(sizes.nodes)]
        await cluster.nodes(names)
        async with _phase(cluster) as phase:
            await cluster.csi_volumes(sizes.volumes, systems)
        yield plain(f"creation of {sizes.volumes:,} volumes, by this row", phase.seconds, "s", _cost(phase))
        await cluster.settle()
        seconds = cpu_seconds(cluster.operator.pid)
        detail = f"it has installed everything, and {sizes.nodes:,} nodes were new, each with two pods"
        yield plain("CPU of the operator until then", seconds, "s", detail)
        async for figure in _start(cluster, sizes, names, address):
            yield figure
        async for figure in _idle(cluster, sizes, alone, before):
            yield figure
        async for figure in _fail_over(cluster, sizes, used[0]):
            yield figure
        async for figure in _api_server_restart(cluster, sizes):
            yield figure
        async for figure in _claims(cluster, sizes, systems):
            yield figure


async def _start(
    cluster: ScaleCluster, sizes: Sizes, names: list[str], address: str
) -> AsyncIterator[Figure]:
    """All agents at once."""
    size = -(-sizes.nodes // sizes.processes)
    async with _phase(cluster) as phase:
        for first in range(0, sizes.nodes, size):
            await cluster.start_agents(names[first : first + size], cluster.folder / f"nodes-{first}")
        await _until(lambda: _is_everywhere(cluster, address, sizes.nodes + 1), "all agents serve")
        await _until(
            lambda: _have_statuses(cluster, sizes.nodes + 1),
            "all agents have a status",
            pause_seconds=_RARE_LOOK_SECONDS,
        )
    times = sorted(cluster.agents_at(address).values())
    yield plain(
        f"size of the status of a node with {sizes.used} tunnels", max(await cluster.statuses()), "bytes"
    )
    name = f"start of {sizes.nodes:,} agents at once"
    yield plain(f"{name}, until the last one has published a status", phase.seconds, "s", _cost(phase))
    yield plain(f"{name}: the last one serves after the first one", times[-1] - times[1], "s")
    yield await _restarted(cluster, name)
    for figure in _requests(name, phase, sizes.nodes):
        yield figure


async def _restarted(cluster: ScaleCluster, after: str) -> Figure:
    """Start the controller again if it has ended, as the kubelet does."""
    ended = not cluster.controller.running
    await cluster.start_controller()
    return plain(f"{after}: the controller lost its Lease and was started again", int(ended))


async def _idle(
    cluster: ScaleCluster, sizes: Sizes, alone: ChildProcess, before: "_Used"
) -> AsyncIterator[Figure]:
    # What the start has caused, such as the second status of an agent, is not idle.
    await asyncio.sleep(_SETTLE_SECONDS)
    calls = await steps.metric(cluster.controller, "kube_efs_aws_calls_total")
    used = cpu_seconds(cluster.controller.pid)
    used_by_operator = cpu_seconds(cluster.operator.pid)
    async with _phase(cluster) as phase:
        after = await _used_by(alone, sizes.idle_seconds)
    calls = await steps.metric(cluster.controller, "kube_efs_aws_calls_total") - calls
    used = cpu_seconds(cluster.controller.pid) - used
    used_by_operator = cpu_seconds(cluster.operator.pid) - used_by_operator
    a_node = phase.cost.requests_for(*_OF_AGENTS) / phase.seconds / (sizes.nodes + 1)
    where = f"{sizes.nodes:,} nodes, {sizes.file_systems:,} file systems, {sizes.volumes:,} volumes"
    yield at_most("requests a second and node, idle", a_node, 0.02, detail=f"{where}: {_cost(phase)}")
    yield plain(
        "bytes a second and node, idle",
        phase.cost.megabytes_for(*_OF_AGENTS) * 1_000_000 / phase.seconds / (sizes.nodes + 1),
        "B/s",
    )
    others = phase.cost.requests_for() - phase.cost.requests_for(*_OF_AGENTS)
    yield plain("all other requests a second, idle", others / phase.seconds, "/s", "the control plane's too")
    yield at_most(
        "AWS calls a second, idle",
        calls / phase.seconds,
        _AWS_A_SECOND_MOST,
        "/s",
        f"{calls / phase.seconds * _HOUR:,.0f} an hour with {sizes.file_systems:,} file systems",
    )
    yield plain("CPU of the controller, idle", used / phase.seconds * 100, "% of a core", where)
    yield plain("memory of the controller", resident_megabytes([cluster.controller.pid]), "MB", where)
    yield plain("CPU of the operator, idle", used_by_operator / phase.seconds * 100, "% of a core", where)
    yield plain("memory of the operator", resident_megabytes([cluster.operator.pid]), "MB", where)
    for figure in _agent(f"beside {where}", after):
        yield figure
    yield at_most("memory of an agent beside these ÷ before", after.megabytes / before.megabytes, 1.1)


async def _fail_over(
    cluster: ScaleCluster, sizes: Sizes, file_system_id: FileSystemId
) -> AsyncIterator[Figure]:
    """The leader is killed; the next one finds a mount target that was replaced meanwhile."""
    replica = cluster.controller.replica(
        cluster.folder / "controller-1.log", {"POD_NAME": f"{NAMES.controller}-1"}
    )
    await replica.start()
    used = sum(cpu_seconds(one.pid) for one in cluster.agents)
    async with _phase(cluster) as phase:
        await cluster.controller.kill()
        cluster.controller = replica
        _, address = await cluster.account.replace_mount_target(file_system_id)
        await cluster.listeners.open(address)
        await _until(lambda: _is_everywhere(cluster, address, sizes.nodes + 1), "all agents know it")
        await _until(lambda: _leads(cluster), "the replica is ready")
        # The statuses of all nodes follow.
        await asyncio.sleep(_SETTLE_SECONDS)
    used = sum(cpu_seconds(one.pid) for one in cluster.agents) - used
    times = sorted(cluster.agents_at(address).values())
    yield at_most(
        "a changed mount target is in use, the last node after the first",
        times[-1] - times[0],
        10,
        "s",
        f"half of the nodes after {times[len(times) // 2] - times[0]:.1f} s, until handed to the data plane; "
        f"all agents share the cores of this machine, and each used {used / len(times) * 1000:.0f} ms of CPU",
    )
    yield plain("fail-over of the controller, until the last node knows the change", phase.seconds, "s")
    for figure in _requests("fail-over and a changed mount target", phase, sizes.nodes):
        yield figure


async def _api_server_restart(cluster: ScaleCluster, sizes: Sizes) -> AsyncIterator[Figure]:
    """The API server is killed, and started again."""
    begun = time.monotonic()
    async with _phase(cluster) as phase:
        await cluster.plane.plane.restart_api_server()
        answered = time.monotonic() - begun
        await _until(
            lambda: _watch(cluster, sizes.nodes + 1),
            "all agents watch again",
            pause_seconds=_RARE_LOOK_SECONDS,
        )
    name = "restart of the API server"
    restarted = await _restarted(cluster, name)
    yield plain(
        f"{name}, until all agents watch again", phase.seconds, "s", f"it answered after {answered:.1f} s"
    )
    yield restarted
    for figure in _requests(name, phase, sizes.nodes):
        yield figure


async def _claims(cluster: ScaleCluster, sizes: Sizes, systems: list[FileSystemId]) -> AsyncIterator[Figure]:
    """Claims of the CSI class at once, beside everything else."""
    classes = [
        await csi_steps.new_class(cluster.client, parameters={"fileSystemId": one}) for one in systems[-2:]
    ]
    used = cpu_seconds(cluster.controller.pid)
    async with Load.of(cluster.client) as load, _phase(cluster) as phase:
        wanted = orders(spread(dict.fromkeys(classes, 1), sizes.claims), None)
        timings = await load.run(wanted, patience_seconds=_CLAIMS_PATIENCE_SECONDS)
    used = cpu_seconds(cluster.controller.pid) - used
    bound = sorted(one.bound for one in timings if one.bound is not None)
    name = f"{sizes.claims:,} claims at once"
    yield exactly(f"{name}, Bound", len(bound), sizes.claims)
    yield plain(
        f"{name} → Bound a second", rate(bound), "/s", f"half after {percentile(bound, 50) or 0:.1f} s"
    )
    yield plain(f"{name}: CPU of the controller", used / sizes.claims * 1000, "ms a claim")
    yield plain(f"{name}: memory of the controller", resident_megabytes([cluster.controller.pid]), "MB")
    for figure in _requests(name, phase, sizes.nodes):
        yield figure


def _config_map(systems: int, data: Mapping[str, str]) -> Iterator[Figure]:
    size = sum(len(value.encode()) for value in data.values())
    yield plain(
        f"size of the ConfigMap with {systems:,} file systems",
        size / 1000,
        "kB",
        f"{size / systems:.0f} bytes each; {LIMIT_BYTES // (size / systems):,.0f} file systems in 1 MiB",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    megabytes: float
    core_percent: float


async def _used_by(process: ChildProcess, seconds: float = 20.0) -> _Used:
    before = cpu_seconds(process.pid)
    await asyncio.sleep(seconds)
    share = (cpu_seconds(process.pid) - before) / seconds
    return _Used(megabytes=megabytes_in_parts([process.pid]), core_percent=share * 100)


def _agent(where: str, used: _Used) -> Iterator[Figure]:
    yield plain(f"memory of an agent {where}", used.megabytes, "MB (PSS)")
    yield plain(f"CPU of an agent {where}", used.core_percent, "% of a core")


def _requests(name: str, phase: _Phase, nodes: int) -> Iterator[Figure]:
    requests = phase.cost.requests_for(*_OF_AGENTS)
    yield plain(
        f"{name}: requests for ConfigMaps, events and Nodes", requests, "", f"{requests / nodes:.1f} a node"
    )
    yield plain(f"{name}: bytes of these", phase.cost.megabytes_for(*_OF_AGENTS), "MB")
    refused = phase.cost.refused
    what = ", ".join(f"{number} {one}" for one, number in refused.items())
    of_agents = [number for one, number in refused.items() if one.endswith(_OF_AGENTS)]
    yield plain(f"{name}: requests for these answered 429", sum(of_agents), "", what)
    yield exactly(f"{name}: requests of ours answered 429 twice", phase.refused_twice, 0)
    # Those of Kubernetes' own controllers, too: the API server answers so until it has loaded a kind.
    others = sum(number for one, number in refused.items() if not one.endswith(_OF_AGENTS))
    yield plain(f"{name}: all other requests answered 429", others)


def _cost(phase: _Phase) -> str:
    cost = phase.cost
    return (
        f"{phase.seconds:.0f} s: {cost.requests_for():,} requests in all, {cost.megabytes_for():.1f} MB; the"
        f" API server used {cost.cpu_seconds:.0f} s of CPU and has {cost.megabytes:,.0f} MB; {cost.detail}"
    )


@asynccontextmanager
async def _phase(cluster: ScaleCluster) -> AsyncIterator[_Phase]:
    phase, before, begun = _Phase(), await cluster.counters.read(), time.monotonic()
    refused_twice = cluster.requests_refused_twice()
    yield phase
    phase.seconds = time.monotonic() - begun
    phase.cost = (await cluster.counters.read()).since(before)
    phase.refused_twice = cluster.requests_refused_twice() - refused_twice


async def _until(
    holds: Callable[[], Awaitable[bool]], what: str, *, pause_seconds: float = _LOOK_SECONDS
) -> None:
    await steps.eventually(holds, what=what, seconds=_PATIENCE_SECONDS, pause_seconds=pause_seconds)


async def _is_everywhere(cluster: ScaleCluster, address: str, nodes: int) -> bool:
    return len(cluster.agents_at(address)) == nodes


async def _have_statuses(cluster: ScaleCluster, nodes: int) -> bool:
    return len(await cluster.statuses()) == nodes


async def _leads(cluster: ScaleCluster) -> bool:
    return await steps.metric(cluster.controller, "kube_efs_leader ") == 1


async def _watch(cluster: ScaleCluster, nodes: int) -> bool:
    return (await cluster.counters.read()).watches["configmaps"] >= nodes


async def _first_address(cluster: ScaleCluster, file_system_id: FileSystemId) -> str:
    return next(iter((await cluster.targets()).targets[file_system_id].address_by_subnet.values()))


ROW: Final = Row(name="scale", measure=measure)
