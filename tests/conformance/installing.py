"""Installs kube-efs in a cluster as the installation page describes."""

from functools import cache
from pathlib import Path

from tests.conformance.kubectl import Kubectl
from typer.testing import CliRunner

from kube_efs.cli import app
from kube_efs.model.names import NEW_INSTALLATION

NAMES = NEW_INSTALLATION.names
NAMESPACE = NAMES.namespace
MANAGER, TUNNEL, WORKER, NODE = NAMES.controller, NAMES.tunnel, NAMES.worker_account, NAMES.node
# What classes of the CSI driver name in these tests.
REFERENCES = ("--secret", "default/role", "--config-map", "default/file-systems")
OPTIONS = ("--for", "openshift", "--csi", *REFERENCES)

_CONSTRAINTS = Path(__file__).with_name("security-context-constraints-crd.yaml")


@cache
def render(*arguments: str) -> str:
    """The output of ``kube-efs render``."""
    result = CliRunner().invoke(app, ["render", *arguments])
    assert result.exit_code == 0
    return result.stdout


async def add_openshift_kinds(kubectl: Kubectl) -> None:
    """Add the kind of OpenShift to the cluster."""
    await kubectl("apply", "-f", str(_CONSTRAINTS))
    await kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=100s")


async def install(kubectl: Kubectl) -> None:
    """Add the kind of OpenShift to the cluster, then install kube-efs."""
    await add_openshift_kinds(kubectl)
    await kubectl("apply", "--validate=strict", "-f", "-", stdin=render(*OPTIONS))
