"""The operator with exactly the permissions of its bundle, as OLM grants them, on a real API server.

The API server logs each request of the operator. So these tests also show that the bundle requests no
permission that the operator does not use.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import yaml
from tests.conformance.audit import AuditedCluster, Right, audit_policy, rights_in
from tests.conformance.kubectl import Kubectl
from tests.conformance.programs import PROGRAMS
from tests.scenarios.faulty_api import FaultyApi
from tests.scenarios.operator_steps import (
    DRIVER,
    NAMESPACE,
    OperatorCluster,
    connected,
    operator_cluster,
)
from tests.scenarios.steps import eventually

from kube_efs.model.names import UNNAMED_INSTALLATION
from kube_efs.operator.bundle import render_service_version
from kube_efs.operator.cluster_csi_driver import OPERATOR_NAMESPACE
from kube_efs.operator.cluster_facts import InstallationFacts
from kube_efs.operator.desired_objects import ALL_OPTIONAL, ProcessSettings, desired_objects
from kube_efs.operator.kinds import KEPT_AFTER_UNINSTALL, ClusterCSIDriver, reference_of
from kube_efs.operator.manifests import RenderOptions, render_asset, values_of
from kube_efs.operator.platforms import Platform
from kube_efs.operator.takeover import COMMUNITY_LABEL
from kube_efs_lab.real_control_plane import ControlPlanes, ServiceAccountName
from kube_efs_lab.real_plane import RealPlane

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACCOUNT: Final = "kube-efs-operator"
# The process of the operator has no KUBE_EFS_NAMES.
OPTIONS: Final = RenderOptions(
    platform=Platform.OPENSHIFT, names=UNNAMED_INSTALLATION, namespace=NAMESPACE, csi=True
)
_HERE: Final = Path(__file__).parent
_SCENARIOS: Final = _HERE.parent / "scenarios"
_OF_CREDENTIALS: Final = "openshift-cloud-credential-operator"
_NEW_IMAGE: Final = "registry.example.com/kube-efs:2"
_REMOVED: Final = (
    "deployments,daemonsets,configmaps,services,roles,clusterroles,securitycontextconstraints,csidrivers"
)
_GROUP: Final = "rbac.authorization.k8s.io"
# Kinds of OpenShift and of Prometheus; SecurityContextConstraints have a file of their own.
_KINDS: Final = (
    ("cloudcredential.openshift.io", "CredentialsRequest", "credentialsrequests", "Namespaced"),
    ("operator.openshift.io", "CloudCredential", "cloudcredentials", "Cluster"),
    ("config.openshift.io", "Infrastructure", "infrastructures", "Cluster"),
    ("config.openshift.io", "APIServer", "apiservers", "Cluster"),
    ("config.openshift.io", "Proxy", "proxies", "Cluster"),
    ("monitoring.coreos.com", "ServiceMonitor", "servicemonitors", "Namespaced"),
    ("monitoring.coreos.com", "PodMonitor", "podmonitors", "Namespaced"),
    ("monitoring.coreos.com", "PrometheusRule", "prometheusrules", "Namespaced"),
)
_SINGLETONS: Final = (
    ("operator.openshift.io", "CloudCredential", {"spec": {"credentialsMode": ""}}),
    ("config.openshift.io", "Infrastructure", {"status": {"infrastructureName": "prod-x7k2p"}}),
    ("config.openshift.io", "APIServer", {"spec": {"tlsSecurityProfile": {"type": "Modern"}}}),
    ("config.openshift.io", "Proxy", {"status": {"httpsProxy": "http://proxy.example.com:3128"}}),
)


# Each permission of the operator itself that no request shows, with the reason for it.
UNSEEN: Final[Mapping[Right, str]] = {
    Right("storage.k8s.io", "storageclasses", "delete"): (
        "the API server asks for it when the owner reference of an older operator is removed, and these tests"
        " do not set KUBE_EFS_CSI_ONLY, with which the operator deletes its own class"
    ),
}


def _permissions() -> list[Any]:
    install = render_service_version(OPTIONS)["spec"]["install"]["spec"]
    return [*install["clusterPermissions"], *install["permissions"]]


def _rules() -> list[Mapping[str, Any]]:
    return [rule for one in _permissions() for rule in one["rules"]]


def _as_olm_grants() -> Iterator[Mapping[str, Any]]:
    """The account, and the roles of an operator for all namespaces: ``permissions`` apply in all of them."""
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "namespace": NAMESPACE},
    }
    for number, one in enumerate(_permissions()):
        assert one["serviceAccountName"] == ACCOUNT
        metadata = {"name": f"aws-efs-operator-{number}"}
        yield {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ClusterRole",
            "metadata": metadata,
            "rules": one["rules"],
        }
        yield {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
        }


def _definitions() -> Iterator[Mapping[str, Any]]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    for group, kind, plural, scope in _KINDS:
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": scope,
                "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        }


def _singletons() -> Iterator[Mapping[str, Any]]:
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _OF_CREDENTIALS}}
    for group, kind, content in _SINGLETONS:
        yield {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "cluster"}, **content}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def audited(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[AuditedCluster, None]:
    """The cluster, after everything that the operator does in its life."""
    folder = tmp_path_factory.mktemp("audited")
    log = folder / "audit.log"
    flags = {"audit-policy-file": audit_policy(folder, NAMESPACE, ACCOUNT), "audit-log-path": log}
    planes = ControlPlanes(folder / "control-plane", PROGRAMS, flags)
    try:
        async with RealPlane(planes) as plane, connected(plane.kubeconfig) as client:
            await _prepare(Kubectl(plane.kubeconfig))
            own = await plane.plane.kubeconfig(ServiceAccountName(NAMESPACE, ACCOUNT))
            async with (
                FaultyApi(own, folder / "operator.kubeconfig") as api,
                operator_cluster(plane.kubeconfig, api, client, folder) as cluster,
            ):
                await eventually(cluster.is_defined, what="the API server has the kind ClusterCSIDriver")
                await _take_over(cluster)
                await _repair(cluster)
                await _upgrade(cluster, folder)
                await _remove(cluster)
                yield AuditedCluster(log)
    finally:
        await planes.stop()


async def _prepare(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", str(_HERE / "security-context-constraints-crd.yaml"))
    await kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(_definitions()))
    await kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
    await kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([*_singletons(), *_as_olm_grants()]))


async def _take_over(cluster: OperatorCluster) -> None:
    """Install the driver where two older operators have left theirs."""
    texts = [
        await asyncio.to_thread((_SCENARIOS / f"{name}.yaml").read_text)
        for name in ("shared-volume-crd", "supported-operator", "community-operator")
    ]
    await cluster.create(texts[0])
    crd = "sharedvolumes.aws-efs.managed.openshift.io"
    uid = await cluster.kubectl("get", "crd", crd, "-o", "jsonpath={.metadata.uid}")
    for text in texts[1:]:
        await cluster.create(text.replace("{namespace}", NAMESPACE).replace("{owner}", uid))
    constraints = {
        **render_asset("security-context-constraints-csi", values_of(OPTIONS))[0],
        "metadata": {"name": "efs-csi-scc", "labels": {COMMUNITY_LABEL: "true"}},
    }
    await cluster.create(json.dumps(constraints))
    # It still runs, and is therefore waited for.
    await cluster.ask(managementState="Managed")
    await cluster.condition("Degraded", status=True, reason="OlderOperatorRuns")
    # Another operator of kube-efs was removed together with its namespace.
    await cluster.annotate(**{OPERATOR_NAMESPACE: "removed"})
    await cluster.kubectl("delete", "deployment", "aws-efs-operator", "-n", NAMESPACE)
    await _provision(cluster)
    await cluster.gone("SecurityContextConstraints", "efs-csi-scc", "")
    await cluster.gone("ClusterRole", "efs-privileged-role", "")
    await cluster.becomes(
        "StorageClass", "efs-sc", lambda one: not one["metadata"].get("ownerReferences"), ""
    )
    await cluster.condition("Available", status=True)
    await cluster.condition("Progressing", status=False)


async def _provision(cluster: OperatorCluster) -> None:
    """Do what OpenShift does for a new CredentialsRequest."""
    name = "openshift-aws-efs-csi-driver"
    await cluster.becomes("CredentialsRequest", name, bool, _OF_CREDENTIALS)
    provisioned = json.dumps({"status": {"provisioned": True}})
    patch = ("--type=merge", "-p", provisioned)
    await cluster.kubectl("patch", "credentialsrequest", name, "-n", _OF_CREDENTIALS, *patch)


async def _repair(cluster: OperatorCluster) -> None:
    """Delete one object of each kind, and edit the workloads."""
    installed = desired_objects(OPTIONS, InstallationFacts(credentials_mode=""), ProcessSettings())
    first = {one["kind"]: reference_of(one) for one in installed if one["kind"] not in KEPT_AFTER_UNINSTALL}
    for reference in first.values():
        live = await cluster.objects.get(reference)
        assert live
        await cluster.objects.delete(live)
    for reference in first.values():
        await cluster.becomes(
            reference.kind,
            reference.name,
            lambda one: not one["metadata"].get("deletionTimestamp"),
            reference.namespace,
        )
    await _provision(cluster)
    # A pass that still creates a workload would give it the desired fields without an update.
    await cluster.condition("Progressing", status=False)
    edit = json.dumps({"spec": {"template": {"spec": {"nodeSelector": {"disk": "fast"}}}}})
    for kind, name in (("Deployment", "efs-manager"), ("DaemonSet", "efs-csi-node")):
        await cluster.kubectl("patch", kind, name, "-n", NAMESPACE, "--type=merge", "-p", edit)
        await cluster.becomes(
            kind, name, lambda one: "disk" not in one["spec"]["template"]["spec"]["nodeSelector"]
        )
    await cluster.condition("Available", status=True)


async def _upgrade(cluster: OperatorCluster, folder: Path) -> None:
    """Replace the operator by another version with all optional objects, and again by the first."""
    await cluster.operator.stop()
    changes = {
        "KUBE_EFS_IMAGE": _NEW_IMAGE,
        "POD_NAME": "kube-efs-operator-1",
        "KUBE_EFS_CONTROLLER_SETTINGS": json.dumps({"KUBE_EFS_STATUS_PAGE": True}),
        "KUBE_EFS_TUNNEL_SETTINGS": json.dumps({"KUBE_EFS_HEALTH_HOST": "0.0.0.0"}),
    }
    newer = cluster.operator.replica(folder / "newer.log", changes)
    await newer.start()
    try:
        await cluster.becomes("Role", "kube-efs-observing", bool)
        for kind, name in (("DaemonSet", "efs-stunnel"), ("DaemonSet", "efs-csi-node")):
            await cluster.becomes(kind, name, lambda one: _NEW_IMAGE in json.dumps(one["spec"]))
        await cluster.condition("Progressing", status=False)
    finally:
        await newer.stop()
        await cluster.operator.start()
        await cluster.operator.ready()
    await cluster.gone("Role", "kube-efs-observing")
    await cluster.becomes("DaemonSet", "efs-csi-node", lambda one: _NEW_IMAGE not in json.dumps(one["spec"]))
    await cluster.condition("Progressing", status=False)


async def _remove(cluster: OperatorCluster) -> None:
    """Remove the driver, first while a pod uses a volume of it."""
    text = await asyncio.to_thread((_SCENARIOS / "using-volume.yaml").read_text)
    await cluster.create(text)
    await cluster.kubectl("wait", "pod/web", "-n", "default", "--for=condition=Ready", "--timeout=60s")
    await cluster.client.delete(ClusterCSIDriver, DRIVER)
    await cluster.condition("VolumesInUse", status=True)
    await cluster.kubectl("delete", "pod", "web", "-n", "default", "--now")
    await cluster.withdraw()
    left = json.loads(
        await cluster.kubectl(
            "get", _REMOVED, "-A", "-l", "app.kubernetes.io/managed-by=kube-efs-operator", "-o", "json"
        )
    )
    assert left["items"] == []


async def test_operator_is_refused_nothing(audited: AuditedCluster) -> None:
    assert await audited.refusals() == set()


async def test_bundle_requests_only_what_the_operator_uses_or_grants(audited: AuditedCluster) -> None:
    """A role can only be created by somebody who has its permissions, so these are in the bundle, too."""
    desired = desired_objects(OPTIONS, InstallationFacts(), ALL_OPTIONAL)
    others = render_asset("operator-monitoring-openshift", {"namespace": NAMESPACE, "operator_name": ACCOUNT})
    granted = [rule for one in (*desired, *others) for rule in one.get("rules", ())]
    own = [rule for rule in _rules() if rule not in granted]
    assert own
    assert rights_in(own) - await audited.used() == UNSEEN.keys()
