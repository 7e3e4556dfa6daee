"""Faults of a node with a real kubelet: programs killed, power cut, disk and memory full.

In each, pods with volumes write and read back all the while. Their programs see no error.
"""

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from tests.kubelet import installing
from tests.kubelet.cluster import NAMES, NODE, PATIENCE, Cluster, Workload, pod
from tests.scenarios.steps import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

_FULL = "/var/lib/fills-the-disk"
# The status of a program that SIGKILL ended.
_KILLED = 137


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def workloads(installed: Cluster) -> AsyncIterator[tuple[Workload, ...]]:
    async with installing.workloads(installed) as workloads:
        yield workloads


async def _continue(workloads: Sequence[Workload]) -> None:
    for one in workloads:
        await one.continues()
        await one.has_seen_no_error()


async def _restarts(cluster: Cluster, component: str) -> list[int]:
    """The restarts of the containers of its pods."""
    pods = await cluster.get("pods", "-n", NAMES.namespace, "-l", f"component={component}")
    return [
        container["restartCount"] for one in pods["items"] for container in one["status"]["containerStatuses"]
    ]


@pytest.mark.parametrize(
    "programs",
    [("kubelet",), ("containerd",), ("kubelet", "containerd")],
    ids=["kubelet", "containerd", "both"],
)
async def test_pods_write_while_the_node_has_no(
    cluster: Cluster, workloads: tuple[Workload, ...], programs: tuple[str, ...]
) -> None:
    before = {one: await cluster.node.processes(one) for one in programs}
    assert all(before.values())

    await cluster.node.kill(*programs)

    await _continue(workloads)

    async def all_run() -> bool:
        now = {one: await cluster.node.processes(one) for one in programs}
        return all(now[one] and now[one] != before[one] for one in programs)

    await eventually(all_run, what=f"{programs} run again", seconds=600)
    await cluster.kubectl("wait", f"node/{NODE}", "--for=condition=Ready", PATIENCE)
    await installing.rolled_out(cluster)


async def test_pods_write_while_containerd_hangs_and_is_replaced(
    cluster: Cluster, workloads: tuple[Workload, ...]
) -> None:
    before = await cluster.node.processes("containerd")
    await cluster.node.run("pkill", "-STOP", "-x", "containerd")

    async def is_replaced() -> bool:
        now = await cluster.node.processes("containerd")
        return bool(now) and now != before

    await eventually(is_replaced, what="containerd is replaced", seconds=600)
    await cluster.kubectl("wait", f"node/{NODE}", "--for=condition=Ready", PATIENCE)
    await _continue(workloads)
    await installing.rolled_out(cluster)


@pytest.mark.parametrize("component", [NAMES.node, NAMES.tunnel, NAMES.controller])
async def test_pods_write_while_pods_of_kube_efs_are_killed_and_replaced(
    cluster: Cluster, workloads: tuple[Workload, ...], component: str
) -> None:
    selector = ("-l", f"component={component}", "-n", NAMES.namespace)
    await cluster.kubectl("delete", "pod", *selector, "--force", PATIENCE)
    await _continue(workloads)
    await installing.rolled_out(cluster)
    await _continue(workloads)


async def test_pods_write_after_everything_was_killed_at_once(
    cluster: Cluster, workloads: tuple[Workload, ...]
) -> None:
    """The kubelet starts the containers of kube-efs again; until then the kernel waits."""
    components = (NAMES.node, NAMES.tunnel, NAMES.controller)
    before = {one: await _restarts(cluster, one) for one in components}

    await cluster.node.kill("kubelet", "containerd", "kube-efs", "stunnel")

    await _continue(workloads)

    async def all_restarted() -> bool:
        return all([await _restarts(cluster, one) > before[one] for one in components])

    await eventually(
        all_restarted, what="the kubelet has started all containers of kube-efs again", seconds=600
    )
    await installing.rolled_out(cluster)


async def test_pods_return_by_themselves_after_the_power_was_cut(
    cluster: Cluster, workloads: tuple[Workload, ...]
) -> None:
    await cluster.node.cut_power()
    before = [one.blocks for one in workloads]
    for one in workloads:
        one.holds_what_was_written()

    await cluster.node.boot()

    for one, blocks in zip(workloads, before, strict=True):
        one.restarts += 1
        await one.reach(blocks + 3)
        await one.has_seen_no_error()
    await installing.rolled_out(cluster)


async def test_pods_write_while_the_disk_of_the_node_is_full(
    cluster: Cluster, workloads: tuple[Workload, ...]
) -> None:
    await cluster.node.run(
        "sh", "-c", f"dd if=/dev/zero of={_FULL} bs=1M 2>/dev/null; df /var/lib | grep 100%"
    )
    try:
        await _continue(workloads)
        # As when a liveness probe fails meanwhile: the agent must start without writing anything.
        await cluster.node.kill("kube-efs")
        await _continue(workloads)
    finally:
        await cluster.node.run("rm", _FULL)
    await installing.rolled_out(cluster)
    await _continue(workloads)


async def test_tunnels_are_the_last_to_end_when_the_node_has_no_memory(
    cluster: Cluster, workloads: tuple[Workload, ...]
) -> None:
    before = [await _restarts(cluster, one) for one in (NAMES.tunnel, NAMES.node)]
    namespace = workloads[0].namespace
    # More than all pods together can have, and written by the program itself: for a system call that needs
    # too much memory, the kernel ends nothing.
    command = ("/opt/kube-efs/bin/python", "-I", "-S", "-c", "b'x' * (1600 << 20)")
    greedy = pod("greedy", namespace, "access-point", image=cluster.image, command=command)

    await cluster.apply(greedy)

    async def greedy_was_ended() -> bool:
        status = (await cluster.get("pod", "greedy", "-n", namespace))["status"]
        ends = [one["state"].get("terminated", {}) for one in status.get("containerStatuses", ())]
        codes = [end["exitCode"] for end in ends if end]
        assert codes in ([], [_KILLED]), status
        return bool(codes) or status.get("reason") == "Evicted"

    await eventually(greedy_was_ended, what="the greedy pod was ended", seconds=600)
    await _continue(workloads)
    assert [await _restarts(cluster, one) for one in (NAMES.tunnel, NAMES.node)] == before
    await cluster.kubectl("wait", f"node/{NODE}", "--for=condition=MemoryPressure=false", PATIENCE)
