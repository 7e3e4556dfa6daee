"""Two controllers with one leader: how the leader loses its lease, and the other continues."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import PolicyRule, RoleRef, Subject
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Event, Namespace
from lightkube.resources.rbac_authorization_v1 import Role, RoleBinding
from tests.scenarios import faulty_api, steps
from tests.scenarios.burst import MOMENTS, Burst
from tests.scenarios.faulty_api import FaultyApi, FaultyPlane
from tests.scenarios.steps import Cluster

from kube_efs.kube.watching import follow, only_object
from kube_efs.model.names import NameSet
from kube_efs_lab.control_plane import ControlPlane
from kube_efs_lab.program import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

LEASE = "kube-efs-controller"
# Longer than an answer of a busy machine may take, so that no leader loses its lease by mistake.
DURATION_SECONDS = 10
END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Replica:
    """A controller, with a proxy to the API server."""

    identity: str
    program: Program
    api: FaultyApi

    async def leads(self) -> bool:
        """Whether it reports that it is the leader."""
        return self.program.running and await steps.metric(self.program, "kube_efs_leader ") == 1

    async def recovers(self) -> None:
        """Restart it, as the kubelet does."""
        self.api.fault = faulty_api.no_fault
        if not self.program.running:
            await self.program.start()
        await self.program.ready()


@dataclass(frozen=True, slots=True)
class Pair:
    """The leader and the standby."""

    leader: Replica
    other: Replica


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    """A short lease."""
    return {
        "KUBE_EFS_LEASE_DURATION_SECONDS": str(DURATION_SECONDS),
        "KUBE_EFS_LEASE_RENEW_SECONDS": "8",
        "KUBE_EFS_LEASE_RETRY_SECONDS": "0.5",
    }


@pytest.fixture(scope="module")
def plane(plane: ControlPlane, cluster_folder: Path) -> FaultyPlane:
    return FaultyPlane(plane, cluster_folder)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(
    cluster: Cluster, plane: FaultyPlane, cluster_folder: Path
) -> AsyncGenerator[list[Replica], None]:
    first, other = (f"{cluster.names.controller}-{number}" for number in (0, 1))
    direct = await plane.inner.kubeconfig_of(cluster.names.controller_account)
    async with FaultyApi(direct, cluster_folder / "second.kubeconfig") as api:
        changes = {"POD_NAME": other, "KUBECONFIG": str(api.kubeconfig)}
        second = cluster.controller.replica(cluster_folder / "second-controller.log", changes)
        yield [
            Replica(first, cluster.controller, plane.api),
            Replica(other, second, api),
        ]
        await second.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def pair(replicas: list[Replica]) -> Pair:
    """Two running controllers, one of which is the leader."""
    for replica in replicas:
        await replica.recovers()

    async def look() -> Pair | None:
        leading = [replica for replica in replicas if await replica.leads()]
        waiting = [replica for replica in replicas if replica not in leading]
        return Pair(*leading, *waiting) if len(leading) == 1 else None

    return await steps.eventually(look, what="one replica leads")


async def test_standby_controller_is_ready_and_idle(cluster: Cluster, pair: Pair) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "one", storage_class, {"volume_name": "one"}))
    await steps.bound_volume(client, namespace, "one")

    ready = f"{pair.other.program.health_url}/readyz"
    async with aiohttp.ClientSession() as session, session.get(ready) as answer:
        assert answer.status == 200
    assert not await pair.other.leads()
    assert await steps.metric(pair.other.program, "kube_efs_provisionings_total") == 0
    assert await steps.metric(pair.other.program, "kube_efs_worker_pods_total") == 0
    assert (await _lease(cluster)).holderIdentity == pair.leader.identity


async def _kill(_cluster: Cluster, pair: Pair) -> None:
    await pair.leader.program.kill()


async def _tell_to_end(_cluster: Cluster, pair: Pair) -> None:
    await pair.leader.program.stop()


async def _cut_off(_cluster: Cluster, pair: Pair) -> None:
    pair.leader.api.fault = lambda _: faulty_api.dropping
    await pair.leader.api.cut_watches()


async def _change_holder(cluster: Cluster, _pair: Pair) -> None:
    patch = {"spec": {"holderIdentity": "somebody"}}
    await cluster.client.patch(Lease, LEASE, patch, namespace=cluster.namespace)


async def _suspend_for_too_long(_cluster: Cluster, pair: Pair) -> None:
    os.kill(pair.leader.program.pid, signal.SIGSTOP)
    await steps.eventually(pair.other.leads, what="the other one leads")
    os.kill(pair.leader.program.pid, signal.SIGCONT)


Loss = Callable[[Cluster, Pair], Awaitable[None]]


@pytest.mark.parametrize(
    ("lose", "exit_code", "moment"),
    [
        pytest.param(_kill, -9, "after the first volume", id="is killed half-way"),
        pytest.param(_tell_to_end, 0, "while a worker runs", id="is terminated"),
        pytest.param(_cut_off, 1, "after the first volume", id="loses the API server"),
        pytest.param(_change_holder, 1, "while a worker runs", id="finds another holder in its Lease"),
        pytest.param(_suspend_for_too_long, 1, "while a worker runs", id="is paused for too long"),
    ],
)
async def test_standby_continues_when_the_leader(
    cluster: Cluster, pair: Pair, lose: Loss, exit_code: int, moment: str
) -> None:
    burst = await Burst.of(cluster)
    async with steps.worker_pods(cluster) as pods:
        await burst.create()
        await burst.reaches(MOMENTS[moment])
        await lose(cluster, pair)
        async with asyncio.timeout(END_SECONDS):
            assert await pair.leader.program.ended() == exit_code
        await steps.eventually(pair.other.leads, what="the other one leads")
        await burst.served()
    # A pod of the former leader may end beside one of the next, which works on other directories.
    assert not pods.conflicts
    assert max(pods.most_at_once.values()) <= 2
    if exit_code == 1:
        assert _last_line(pair.leader.program) == (
            f"error: leadership: '{LEASE}' was lost; the pod restarts and waits to lead again"
        )


async def test_leader_that_ends_in_order_hands_over_before_its_lease_expires(
    cluster: Cluster, pair: Pair
) -> None:
    async with _history(cluster) as history:
        assert await pair.leader.program.stop() == 0
        await steps.eventually(pair.other.leads, what="the other one leads")

        async def noted() -> bool:
            return history[-1].holderIdentity == pair.other.identity

        await steps.eventually(noted, what="the Lease says so")
    held = [spec for spec in history if spec.holderIdentity == pair.leader.identity][-1]
    taken = next(spec for spec in history if spec.holderIdentity == pair.other.identity)
    # Each may have renewed it meanwhile.
    holders = [spec.holderIdentity or "" for spec in history]
    free = holders.index("")
    assert set(holders[:free]) == {pair.leader.identity}
    assert set(holders[free + 1 :]) == {pair.other.identity}
    assert held.renewTime
    assert taken.acquireTime
    assert taken.acquireTime - held.renewTime < timedelta(seconds=DURATION_SECONDS)


async def test_controller_of_a_second_installation_does_nothing_and_says_so(
    cluster: Cluster, plane: FaultyPlane, pair: Pair, cluster_folder: Path
) -> None:
    second = NameSet.OPENSHIFT_EFS_STUNNEL.names
    await _install_lease(cluster, second.namespace)
    changes = {
        "POD_NAME": f"{second.controller}-0",
        "POD_NAMESPACE": second.namespace,
        "KUBE_EFS_NAMES": second.name_set.value,
        "KUBECONFIG": str(await plane.inner.kubeconfig_of(cluster.names.controller_account)),
    }
    other = cluster.controller.replica(cluster_folder / "second-installation.log", changes)
    await other.start()
    try:

        async def told() -> str:
            events = cluster.client.list(Event, namespace=second.namespace, fields={"reason": "NotLeading"})
            return "; ".join([one.message or "" async for one in events])

        message = await steps.eventually(told, what="the second installation says that it waits")
        assert f"the leader of the Lease {cluster.namespace}/{LEASE} serves " in message

        namespace = await steps.new_namespace(cluster.client)
        storage_class = await steps.new_class(cluster.client, default_file_system_id="auto")
        await cluster.client.create(steps.claim(namespace, "one", storage_class, {"volume_name": "one"}))
        await steps.bound_volume(cluster.client, namespace, "one")
        assert await pair.leader.leads()
        assert await steps.metric(other, "kube_efs_leader ") == 0
        # Its tunnels would open the same ports.
        maps = cluster.client.list(ConfigMap, namespace=second.namespace)
        assert second.config_map not in {one.metadata.name async for one in maps if one.metadata}
    finally:
        await other.stop()


async def _install_lease(cluster: Cluster, namespace: str) -> None:
    """The namespace of a second installation, in which the controller of the first may have a Lease."""
    await cluster.client.create(Namespace(metadata=ObjectMeta(name=namespace)))
    metadata = ObjectMeta(name=LEASE, namespace=namespace)
    rule = PolicyRule(
        apiGroups=["coordination.k8s.io"], resources=["leases"], verbs=["get", "create", "update"]
    )
    account = cluster.names.controller_account
    subject = Subject(kind="ServiceAccount", name=account, namespace=cluster.namespace)
    role = RoleRef(apiGroup="rbac.authorization.k8s.io", kind="Role", name=LEASE)
    await cluster.client.create(Role(metadata=metadata, rules=[rule]))
    await cluster.client.create(RoleBinding(metadata=metadata, roleRef=role, subjects=[subject]))


async def _lease(cluster: Cluster) -> LeaseSpec:
    found = await cluster.client.get(Lease, LEASE, namespace=cluster.namespace)
    assert found.spec
    return found.spec


@asynccontextmanager
async def _history(cluster: Cluster) -> AsyncGenerator[list[LeaseSpec], None]:
    """Record every state of the Lease while the context is open."""
    states: list[LeaseSpec] = []

    async def watch() -> None:
        name = {"metadata.name": LEASE}
        async for change in follow(cluster.client, Lease, namespace=cluster.namespace, fields=name):
            lease = only_object(change)
            if lease and lease.spec:
                states.append(lease.spec)

    async def begun() -> bool:
        return bool(states)

    watching = asyncio.create_task(watch())
    await steps.eventually(begun, what="the Lease is there")
    try:
        yield states
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def _last_line(program: Program) -> str:
    return program.log_file.read_text(encoding="utf-8").splitlines()[-1]
