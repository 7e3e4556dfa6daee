"""The operator on a cluster with kinds of OpenShift: constraints, credentials, infrastructure."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from tests.scenarios.operator_steps import NAMESPACE, OperatorCluster, running_operator

from kube_efs.operator.manifests import RenderOptions, render_asset, values_of
from kube_efs.operator.platforms import Platform
from kube_efs_lab.control_plane import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONSTRAINTS = Path(__file__).parents[1] / "conformance" / "security-context-constraints-crd.yaml"
OF_CREDENTIALS = "openshift-cloud-credential-operator"
CREDENTIALS = "AWSEFSDriverCredentialsRequestController"
KINDS = (
    ("cloudcredential.openshift.io", "CredentialsRequest", "credentialsrequests", "Namespaced"),
    ("operator.openshift.io", "CloudCredential", "cloudcredentials", "Cluster"),
    ("config.openshift.io", "Infrastructure", "infrastructures", "Cluster"),
    ("config.openshift.io", "APIServer", "apiservers", "Cluster"),
)


def _definition(group: str, kind: str, plural: str, scope: str) -> dict[str, object]:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": anything}
    return {
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


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(plane: ControlPlane, cluster_folder: Path) -> AsyncGenerator[OperatorCluster, None]:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OF_CREDENTIALS}}
    kinds = (
        CONSTRAINTS.read_text(),
        yaml.safe_dump_all([namespace, *(_definition(*one) for one in KINDS)]),
    )
    running = running_operator(plane, cluster_folder, platform=Platform.OPENSHIFT, kinds=kinds)
    async with running as found:
        yield found


def _older_constraints() -> str:
    found = render_asset(
        "security-context-constraints-csi", values_of(RenderOptions(platform=Platform.OPENSHIFT))
    )
    labels = {"openshift.io/aws-efs-operator-owned": "true"}
    return yaml.safe_dump({**found[0], "metadata": {"name": "efs-csi-scc", "labels": labels}})


async def test_objects_for_openshift_are_installed_and_removed(cluster: OperatorCluster) -> None:
    await cluster.create(
        yaml.safe_dump_all(
            [
                {
                    "apiVersion": "operator.openshift.io/v1",
                    "kind": "CloudCredential",
                    "metadata": {"name": "cluster"},
                    "spec": {"credentialsMode": ""},
                },
                {
                    "apiVersion": "config.openshift.io/v1",
                    "kind": "Infrastructure",
                    "metadata": {"name": "cluster"},
                    "status": {"infrastructureName": "prod-x7k2p"},
                },
                {
                    "apiVersion": "config.openshift.io/v1",
                    "kind": "APIServer",
                    "metadata": {"name": "cluster"},
                    "spec": {"tlsSecurityProfile": {"type": "Modern"}},
                },
            ]
        )
    )
    # aws-efs-operator leaves this object, even if its instructions for the removal are followed.
    await cluster.create(await asyncio.to_thread(_older_constraints))
    await cluster.ask(managementState="Managed")
    await cluster.condition(f"{CREDENTIALS}Available", status=False, reason="CredentialsNotProvisionedYet")
    request = await cluster.get("CredentialsRequest", "openshift-aws-efs-csi-driver", OF_CREDENTIALS)
    assert request
    assert request["spec"]["secretRef"] == {"name": "aws-efs-cloud-credentials", "namespace": NAMESPACE}
    provisioned = json.dumps({"status": {"provisioned": True}})
    patch = ("--type=merge", "-p", provisioned)
    await cluster.kubectl(
        "patch", "credentialsrequest", "openshift-aws-efs-csi-driver", "-n", OF_CREDENTIALS, *patch
    )
    await cluster.condition("Available", status=True)
    await cluster.condition("Degraded", status=False)
    assert await cluster.get("SecurityContextConstraints", "efs-csi-node", "")
    assert await cluster.get("SecurityContextConstraints", "efs-csi-scc", "") is None
    controller = json.dumps(await cluster.get("Deployment", "efs-manager"))
    assert "kubernetes.io/cluster/prod-x7k2p:owned" in controller
    assert '{"name": "KUBE_EFS_METRICS_TLS_VERSION", "value": "1.3"}' in controller

    await cluster.withdraw()
    assert await cluster.get("SecurityContextConstraints", "efs-csi-node", "") is None
    assert await cluster.get("CredentialsRequest", "openshift-aws-efs-csi-driver", OF_CREDENTIALS) is None
    assert await cluster.get("ConfigMap", "aws-efs-csi-driver-trusted-ca-bundle") is None
