"""The controller, the tunnels and the nodes with exactly the roles that the operator installs.

They serve volumes of each kind on a real API server, which logs each of their requests. So these tests show
that the roles lack no permission, and have none that nobody uses.
"""

import itertools
from collections.abc import AsyncGenerator, Mapping
from typing import Final

import pytest
import pytest_asyncio
from lightkube import AsyncClient
from tests.conformance.audit import AuditedCluster, Right, audit_policy, rights_in
from tests.conformance.programs import PROGRAMS
from tests.scenarios import csi_steps, steps
from tests.scenarios.copy_steps import copy_of
from tests.scenarios.directory_steps import Claims
from tests.scenarios.forking import fork_module
from tests.scenarios.shared_volume_steps import SharedVolumes, new_access_point
from tests.scenarios.snapshot_steps import Snapshots, install_kinds

from kube_efs.operator.cluster_facts import InstallationFacts
from kube_efs.operator.desired_objects import ALL_OPTIONAL, desired_objects
from kube_efs.operator.kinds import WORKLOADS
from kube_efs.operator.manifests import Manifest, RenderOptions, text_of
from kube_efs.operator.platforms import Platform
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.manifests import apply
from kube_efs_lab.programs import NAMES
from kube_efs_lab.real_control_plane import ControlPlanes
from kube_efs_lab.real_plane import RealPlane

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPTIONS: Final = RenderOptions(platform=Platform.KUBERNETES, namespace=NAMES.namespace, csi=True)
ACCOUNTS: Final = (NAMES.controller_account, NAMES.tunnel_account, NAMES.node_account)
# Permissions that these volumes do not need, with the reason for each.
_COUNTED: Final = "an event that is repeated, also after a restart, is counted"
_LOCATION: Final = "the region and the zone, if neither the settings nor the instance metadata have them"
UNSEEN: Final[Mapping[str, Mapping[Right, str]]] = {
    NAMES.controller_account: {
        Right("", "events", "get"): _COUNTED,
        Right("", "events", "patch"): _COUNTED,
        Right("", "events", "list"): "why a worker pod does not start, and the status page",
        Right("", "nodes", "get"): _LOCATION,
        Right("", "pods", "get"): "whether a worker pod exists that the watch has not shown",
        Right("storage.k8s.io", "csinodes", "list"): "worker pods on nodes without mount.nfs",
        Right("storage.k8s.io", "csinodes", "watch"): "worker pods on nodes without mount.nfs",
    },
    NAMES.tunnel_account: {
        Right("", "configmaps", "delete"): "the status of the node, when its tunnels end",
        Right("", "configmaps", "get"): "`kube-efs doctor cluster` in a pod of the tunnels",
        Right("", "events", "create"): "tunnels that are denied or down",
        Right("", "events", "get"): _COUNTED,
        Right("", "events", "patch"): _COUNTED,
        Right("", "nodes", "get"): _LOCATION,
    },
    NAMES.node_account: {
        Right("", "nodes", "patch"): "the startup taint",
        Right("", "serviceaccounts", "get"): "the role of a pod that signs its own connection",
        Right("apps", "daemonsets", "get"): "the startup taint stays until the tunnels serve",
    },
}


def _desired() -> tuple[Manifest, ...]:
    return desired_objects(OPTIONS, InstallationFacts(), ALL_OPTIONAL)


def _granted(account: str) -> set[Right]:
    """The permissions in the roles that are bound to the account."""
    desired = _desired()
    bound = {
        (one["roleRef"]["kind"], one["roleRef"]["name"])
        for one in desired
        if any(subject["name"] == account for subject in one.get("subjects", ()))
    }
    roles = [one for one in desired if (one["kind"], one["metadata"]["name"]) in bound]
    return rights_in(itertools.chain.from_iterable(one["rules"] for one in roles))


class _PlaneOfTheOperator(RealPlane):
    """With what the operator installs, except the workloads and the kinds of Prometheus."""

    async def install(self, client: AsyncClient, namespace: str) -> None:
        await super().install(client, namespace)
        left_out = WORKLOADS | {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
        kept = [one for one in _desired() if one["kind"] not in left_out]
        await apply(client, [text_of(kept, as_json=False)])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def audited(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[AuditedCluster, None]:
    """The cluster, after volumes of each kind were created, used and deleted."""
    folder = tmp_path_factory.mktemp("audited")
    log = folder / "audit.log"
    policy = audit_policy(folder, NAMES.namespace, *ACCOUNTS)
    planes = ControlPlanes(
        folder / "control-plane", PROGRAMS, {"audit-policy-file": policy, "audit-log-path": log}
    )
    settings = {
        "KUBE_EFS_SHARED_VOLUMES": "true",
        "KUBE_EFS_USAGE_INTERVAL_SECONDS": "2",
        "PROVISION_BACKOFF_INTERVAL": "1",
    }
    try:
        async with EmbeddedCluster(
            folder / "cluster",
            settings=settings,
            control_plane=_PlaneOfTheOperator(planes),
            starter=fork_module,
        ) as cluster:
            await _tunnel_volume(cluster)
            await _csi_volume(cluster)
            await _file_system_for_a_claim(cluster)
            await _shared_volume(cluster)
            await _snapshot(cluster)
            yield AuditedCluster(log)
    finally:
        await planes.stop()


async def _tunnel_volume(cluster: EmbeddedCluster) -> None:
    namespace = await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(cluster.client, default_file_system_id="auto")
    body = steps.claim(namespace, "data", storage_class, {"volume_name": "data"})
    await cluster.client.create(body)
    volume = await steps.bound_volume(cluster.client, namespace, "data")
    await cluster.client.delete(type(body), "data", namespace=namespace)
    await steps.gone(cluster.client, volume.name)


async def _csi_volume(cluster: EmbeddedCluster) -> None:
    claims = await Claims.of(cluster)
    parameters = {"fileSystemId": cluster.file_system_ids[0]}
    storage_class = await csi_steps.new_class(cluster.client, parameters=parameters)
    await steps.allow_expansion(cluster.client, storage_class)
    await claims.provisioned(storage_class, "data")
    await steps.expand(cluster.client, claims.namespace, "data", "4Gi")
    await csi_steps.removed(cluster, claims, "data")


async def _file_system_for_a_claim(cluster: EmbeddedCluster) -> None:
    claims = await Claims.of(cluster)
    storage_class = await csi_steps.new_class(cluster.client, parameters={"provisioningMode": "efs-fs"})
    await claims.provisioned(storage_class, "data")
    await csi_steps.removed(cluster, claims, "data")


async def _shared_volume(cluster: EmbeddedCluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    place = await new_access_point(cluster)
    await volumes.create(file_system=place.file_system_id, access_point=place.access_point_id)
    await volumes.bound()
    await volumes.run("reader", "ls /mnt/efs-data")
    await volumes.end_pods("reader")
    await volumes.removed()


async def _snapshot(cluster: EmbeddedCluster) -> None:
    await install_kinds(cluster)
    claims = await Claims.of(cluster)
    snapshots = Snapshots(cluster, claims)
    parameters = {"fileSystemId": cluster.file_system_ids[0]}
    storage_class = await csi_steps.new_class(cluster.client, parameters=parameters)
    content = await snapshots.ready("yesterday", await claims.provisioned(storage_class, "data"))
    await cluster.client.create(copy_of(claims, "copy", storage_class, "yesterday", "VolumeSnapshot"))
    await claims.bound("copy")
    await snapshots.delete(content.name)
    await snapshots.is_gone(content.name)


async def test_driver_is_refused_nothing(audited: AuditedCluster) -> None:
    assert await audited.refusals() == set()


@pytest.mark.parametrize("account", ACCOUNTS)
async def test_roles_grant_only_what_the_driver_uses(audited: AuditedCluster, account: str) -> None:
    unused = _granted(account) - await audited.used(account)
    # Events are repeated only sometimes.
    assert unused <= UNSEEN[account].keys()
    assert UNSEEN[account].keys() <= _granted(account)
