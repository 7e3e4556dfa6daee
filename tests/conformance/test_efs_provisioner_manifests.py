"""The manifests of efs-provisioner on a real control plane: fields, permissions, and its README's examples.

The pods run on the embedded node.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.conformance.installing import add_openshift_kinds
from tests.conformance.kubectl import Kubectl
from tests.integration.efs_provisioner import (
    DEPLOY,
    Site,
    check_deployment_step_by_step,
    check_nothing_is_left,
    check_older_installation,
    check_quick_start,
    check_removal_of_the_provisioner,
    check_stateful_set,
    deploy_quick_start,
    site_on,
)

from kube_efs_lab.real_control_plane import ControlPlanes
from kube_efs_lab.real_plane import RealPlane

pytestmark = pytest.mark.asyncio(loop_scope="session")

FILES = sorted(path.name for path in DEPLOY.iterdir())
# Verb and resource, each in the namespace of the provisioner and in another one.
ALLOWED = [
    *(f"{verb} persistentvolumes" for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *(f"{verb} persistentvolumeclaims" for verb in ("get", "list", "watch")),
    *(f"{verb} storageclasses.storage.k8s.io" for verb in ("get", "list", "watch")),
    *(f"{verb} events" for verb in ("get", "create", "patch")),
]
REFUSED = [
    *(f"{verb} persistentvolumes" for verb in ("update", "deletecollection")),
    *(f"{verb} persistentvolumeclaims" for verb in ("create", "update", "patch", "delete")),
    *(f"{verb} storageclasses.storage.k8s.io" for verb in ("create", "update", "patch", "delete")),
    *(f"{verb} events" for verb in ("list", "watch", "delete")),
    *(f"get {kind}" for kind in ("secrets", "configmaps", "pods", "nodes", "namespaces", "endpoints")),
    *(f"create {kind}" for kind in ("pods", "pods/exec", "serviceaccounts/token", "endpoints")),
    *(f"{verb} leases.coordination.k8s.io" for verb in ("get", "update", "patch", "list", "delete")),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    tmp_path_factory: pytest.TempPathFactory, control_planes: ControlPlanes
) -> AsyncIterator[Site]:
    folder: Path = tmp_path_factory.mktemp("site")
    async with site_on(RealPlane(control_planes), folder) as running:
        await add_openshift_kinds(running.kubectl)
        yield running


@pytest.mark.parametrize("file", FILES)
async def test_api_server_accepts_every_field(site: Site, file: str) -> None:
    flags = ("--dry-run=server", "--validate=strict")
    answer = await site.kubectl.run("create", *flags, "-f", str(DEPLOY / file))
    assert (answer.status, answer.errors) == (0, "")


async def test_quick_start_and_stateful_set_of_the_readme_work(site: Site) -> None:
    await deploy_quick_start(site)
    await check_quick_start(site)
    await check_stateful_set(site)
    await _check_permissions(site.kubectl)
    await check_nothing_is_left(site)


async def test_older_installation_needs_only_its_own_environment_and_permissions(site: Site) -> None:
    await check_older_installation(site)


async def test_commands_of_the_readme_work_in_another_namespace(site: Site) -> None:
    await check_deployment_step_by_step(site, "storage")
    await check_removal_of_the_provisioner(site)


async def _check_permissions(kubectl: Kubectl) -> None:
    """The provisioner has no more permissions than it needed until now."""
    for namespace in ("default", "kube-system"):
        assert [call for call in ALLOWED if not await _may(kubectl, call, namespace)] == []
        assert [call for call in REFUSED if await _may(kubectl, call, namespace)] == []
    for verb in ("get", "update"):
        assert await _may(kubectl, f"{verb} leases.coordination.k8s.io/efs-provisioner", "default")
        assert not await _may(kubectl, f"{verb} leases.coordination.k8s.io/efs-provisioner", "kube-system")
    assert await _may(kubectl, "create leases.coordination.k8s.io", "default")


async def _may(kubectl: Kubectl, call: str, namespace: str) -> bool:
    account = "--as=system:serviceaccount:default:efs-provisioner"
    answer = await kubectl.run("auth", "can-i", *call.split(), account, "-n", namespace)
    assert answer.output.strip() in {"yes", "no"}, answer.errors
    return answer.output.strip() == "yes"
