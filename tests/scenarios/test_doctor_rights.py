"""The doctor with a real authorizer: missing permissions, and the view of a service account."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml
from tests.conformance.installing import MANAGER, NAMESPACE, NODE, TUNNEL, install
from tests.conformance.kubectl import Kubectl
from tests.scenarios.steps import eventually

from kube_efs.cli import installation
from kube_efs.doctor.diagnosis import diagnose
from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.run import examine_cluster
from kube_efs.kube.client import connect, load_config
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs_lab.real_control_plane import ControlPlanes, RealControlPlane, ServiceAccountName

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.real_only("the embedded API server allows everything"),
]

_ROLE = ("clusterrole", "kube-efs-controller")
_USE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "constraints", "namespace": NAMESPACE},
    "rules": [
        {
            "apiGroups": ["security.openshift.io"],
            "resources": ["securitycontextconstraints"],
            "resourceNames": [NODE],
            "verbs": ["use"],
        }
    ],
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plane(control_planes: ControlPlanes) -> AsyncIterator[RealControlPlane]:
    """A real control plane with kube-efs installed, but no running pods."""
    plane = await control_planes.fresh()
    await install(Kubectl(plane.admin_kubeconfig))
    yield plane


@pytest.fixture
def kubectl(plane: RealControlPlane) -> Kubectl:
    return Kubectl(plane.admin_kubeconfig)


async def _examine(plane: RealControlPlane, account: str = "") -> dict[str, list[Finding]]:
    """The findings by kind, with the permissions of the administrator or of a service account."""
    user = ServiceAccountName(NAMESPACE, account) if account else None
    kubeconfig = await plane.kubeconfig(user)
    attempts = Attempts(timeout_seconds=60)
    async with connect(load_config(kubeconfig)) as client:
        cluster = await examine_cluster(client, NEW_INSTALLATION.names, installation, attempts)
    found: dict[str, list[Finding]] = {}
    for one in diagnose(Facts(cluster=cluster, gaps=attempts.gaps)):
        found.setdefault(one.kind.id, []).append(one)
    return found


async def test_rendered_manifests_grant_every_permission(plane: RealControlPlane) -> None:
    found = await _examine(plane)
    assert "rbac/missing" not in found
    # There are no pods and no leader here; these are the only findings.
    assert found.keys() <= {"workload/not-ready", "controller/no-leader", "targets/missing"}
    assert "controller/no-leader" in found


async def test_missing_verb_is_named(plane: RealControlPlane, kubectl: Kubectl) -> None:
    before = await kubectl("get", *_ROLE, "-o", "yaml")
    role = yaml.safe_load(before)
    rule = next(one for one in role["rules"] if one["resources"] == ["persistentvolumes"])
    rule["verbs"].remove("patch")
    del role["metadata"]["resourceVersion"]
    await kubectl("replace", "-f", "-", stdin=yaml.safe_dump(role))
    try:
        (found,) = await _until_missing(plane)
        assert found.subject.name == f"{NAMESPACE}/{MANAGER}"
        assert found.evidence == ("patch persistentvolumes",)
        # The account itself gets the same finding, although it may not check others.
        told = await _examine(plane, MANAGER)
        assert [one.evidence for one in told["rbac/missing"]] == [("patch persistentvolumes",)]
    finally:
        rule["verbs"].append("patch")
        await kubectl("replace", "-f", "-", stdin=yaml.safe_dump(role))


async def _until_missing(plane: RealControlPlane) -> list[Finding]:
    """Wait for missing permissions, because the authorizer sees changes of roles with a delay."""

    async def look() -> list[Finding] | None:
        return (await _examine(plane)).get("rbac/missing")

    return await eventually(look, what="a right is missing")


async def test_constraints_are_used_by_name_or_by_a_role(plane: RealControlPlane, kubectl: Kubectl) -> None:
    assert "scc/missing" not in await _examine(plane)
    await kubectl("patch", "scc", NODE, "--type=merge", "-p", '{"users": []}')
    try:
        (found,) = (await _examine(plane))["scc/missing"]
        assert found.subject.name == f"{NAMESPACE}/{NODE}"
        assert f"{NODE}: neither list the account nor are granted by its roles" in found.evidence
        assert str(found.commands[0]) == f"oc adm policy add-scc-to-user {NODE} -z {NODE} -n {NAMESPACE}"

        await kubectl("apply", "-f", "-", stdin=yaml.safe_dump(_USE))
        bound = ("--role=constraints", f"--serviceaccount={NAMESPACE}:{NODE}", "-n", NAMESPACE)
        await kubectl("create", "rolebinding", "constraints", *bound)

        async def usable() -> bool:
            return "scc/missing" not in await _examine(plane)

        await eventually(usable, what="the role counts")
    finally:
        await kubectl("delete", "role,rolebinding", "constraints", "-n", NAMESPACE, "--ignore-not-found")
        users = json.dumps({"users": [f"system:serviceaccount:{NAMESPACE}:{NODE}"]})
        await kubectl("patch", "scc", NODE, "--type=merge", "-p", users)


async def test_missing_permission_is_reported_and_all_else_is_checked(plane: RealControlPlane) -> None:
    found = await _examine(plane, TUNNEL)
    assert "rbac/missing" not in found
    assert "targets/missing" in found  # the one thing that tunnels may read
    gaps = {one.subject.name: one for one in found["doctor/not-checked"]}
    assert {
        "pods",
        "nodes",
        "claims",
        f"the permissions of ServiceAccount {NAMESPACE}/{MANAGER}",
    } <= gaps.keys()
    assert f"the permissions of ServiceAccount {NAMESPACE}/{TUNNEL}" not in gaps
    assert "403" in gaps["pods"].evidence[0]
