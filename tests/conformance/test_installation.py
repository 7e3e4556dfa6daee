"""``kube-efs render`` on a real API server: manifests are accepted, complete, and replace older objects."""

import json
from pathlib import Path

import pytest
import yaml
from tests.conformance.installing import MANAGER, NAMES, NAMESPACE, NODE, OPTIONS, REFERENCES, TUNNEL, render
from tests.conformance.kubectl import Kubectl

from kube_efs.model.names import NameSet
from kube_efs.operator.manifests import RenderOptions, render_manifests
from kube_efs.operator.platforms import Platform

pytestmark = pytest.mark.asyncio(loop_scope="session")

OLDER_SYSTEM = Path(__file__).with_name("openshift-efs-stunnel.yaml")
OLDER = NameSet.OPENSHIFT_EFS_STUNNEL.names
WORKLOADS = (f"deployment/{OLDER.controller}", f"daemonset/{OLDER.tunnel}")


@pytest.mark.parametrize("more", [(), ("--csi", *REFERENCES)], ids=["without", "csi"])
@pytest.mark.parametrize("platform", Platform)
async def test_api_server_accepts_every_field(
    installed: Kubectl, platform: Platform, more: tuple[str, ...]
) -> None:
    manifests = render("--for", str(platform), "--region", "us-east-1", *more)
    flags = ("--dry-run=server", "--validate=strict")
    answer = await installed.run("apply", *flags, "-f", "-", stdin=manifests)
    assert (answer.status, answer.errors) == (0, "")
    assert answer.output.count("(server dry run)") == len(list(yaml.safe_load_all(manifests)))


@pytest.mark.parametrize("platform", Platform)
async def test_api_server_accepts_every_field_of_the_operator(installed: Kubectl, platform: Platform) -> None:
    manifests = render("--for", str(platform), "--operator", "--namespace", NAMESPACE)
    flags = ("--dry-run=server", "--validate=strict")
    answer = await installed.run("apply", *flags, "-f", "-", stdin=manifests)
    assert (answer.status, answer.errors) == (0, "")
    assert answer.output.count("(server dry run)") == len(list(yaml.safe_load_all(manifests)))


@pytest.mark.parametrize("output", ["yaml", "json"])
async def test_second_apply_changes_nothing(installed: Kubectl, output: str) -> None:
    manifests = render(*OPTIONS, "--output", output)
    again = await installed("apply", "-f", "-", stdin=manifests)
    assert [line for line in again.splitlines() if not line.endswith(" unchanged")] == []


async def test_kubectl_shows_the_installation(installed: Kubectl) -> None:
    listing = await installed("get", "deployment,daemonset", "-n", NAMESPACE)
    assert all(name in listing for name in (f"deployment.apps/{MANAGER}", f"daemonset.apps/{TUNNEL}"))
    described = await installed("describe", "deployment", MANAGER, "-n", NAMESPACE)
    assert "http-get http://:health/readyz" in described
    assert "gnuthought.com/efs-stunnel" in await installed("get", "storageclass", NAMES.storage_class)


async def test_two_installations_share_a_cluster(installed: Kubectl) -> None:
    options = (
        "--for",
        "kubernetes",
        "--names",
        "kube-efs",
        "--namespace",
        "second",
        "--create-namespace",
        "--storage-class",
        "second",
    )
    await installed("apply", "-f", "-", stdin=render(*options))
    for namespace in (NAMESPACE, "second"):
        assert await installed("get", "clusterrolebinding", f"kube-efs-controller:{namespace}")


async def test_pods_of_the_installation_pass_admission(installed: Kubectl) -> None:
    """Each pod template is created as a pod; Pod Security of the namespace must admit the tunnel."""
    manifests = render_manifests(RenderOptions(platform=Platform.KUBERNETES, csi=True))
    for template in [one["spec"]["template"] for one in manifests if "template" in one.get("spec", {})]:
        metadata = {**template["metadata"], "name": "trial", "namespace": NAMESPACE}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        answer = await installed.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
        assert (answer.status, answer.errors) == (0, "")


async def test_csidriver_of_the_aws_driver_is_updated(installed: Kubectl) -> None:
    """Some fields of a CSIDriver are immutable, so they must not differ from those of the AWS driver."""
    (mine,) = [
        one
        for one in render_manifests(RenderOptions(platform=Platform.KUBERNETES, csi=True))
        if one["kind"] == "CSIDriver"
    ]
    await installed("delete", "csidriver", "efs.csi.aws.com")
    theirs = {**mine, "spec": {"attachRequired": False}}
    await installed("create", "-f", "-", stdin=yaml.safe_dump(theirs))
    await installed("apply", "-f", "-", stdin=yaml.safe_dump(dict(mine)))
    policy = await installed("get", "csidriver", "efs.csi.aws.com", "-o", "jsonpath={.spec.fsGroupPolicy}")
    assert policy == "None"


async def test_upgrade_can_exclude_the_tunnels(installed: Kubectl) -> None:
    flags = ("--dry-run=server", "-l", f"component!={TUNNEL}", "-o", "name")
    answered = await installed("apply", *flags, "-f", "-", stdin=render(*OPTIONS))
    workloads = {name for name in answered.split() if name.startswith(("daemonset", "deployment"))}
    assert workloads == {f"daemonset.apps/{NODE}", f"deployment.apps/{MANAGER}"}


async def test_upgrade_with_other_names_adds_an_installation_that_can_be_removed(installed: Kubectl) -> None:
    """As in docs/install.md: the first installation continues, and keeps the objects that both have."""
    first = ("--for", "openshift", "--names", str(OLDER.name_set), "--csi")
    await installed("apply", "-f", "-", stdin=render(*first))
    second = render("--for", "openshift", "--csi")
    await installed("apply", "-f", "-", stdin=second)
    # Only the objects of the second one were created: those of the first one and of both are as before.
    answer = await installed("apply", "-f", "-", stdin=render(*first))
    assert [line for line in answer.splitlines() if not line.endswith(" unchanged")] == []
    # The scheduler keeps the pods of the second one away from the nodes while those of the first one run.
    for one, other in ((OLDER.tunnel, NAMES.tunnel), (OLDER.node, NAMES.node)):
        ports = "jsonpath={.spec.template.spec.containers[*].ports[*].hostPort}"
        used = await installed("get", "daemonset", one, "-n", OLDER.namespace, "-o", ports)
        assert used
        assert used == await installed("get", "daemonset", other, "-n", NAMESPACE, "-o", ports)

    await installed("delete", "namespace", NAMESPACE)
    await installed("delete", "storageclass", NAMES.storage_class)
    answer = await installed("apply", "-f", "-", stdin=render(*first))
    assert [line for line in answer.splitlines() if not line.endswith(" unchanged")] == []
    await installed("apply", "-f", "-", stdin=render(*OPTIONS))


async def test_older_installation_is_replaced_node_by_node(installed: Kubectl) -> None:
    await _install_older_system(installed)
    old_pods = await _tunnel_pods(installed)
    assert len(old_pods) == 2

    # From here on as in docs/install.md.
    await installed("delete", "deployment", "efs-manager", "--cascade=foreground", "-n", OLDER.namespace)
    await installed("delete", "daemonset", "efs-stunnel", "--cascade=orphan", "-n", OLDER.namespace)
    selected = ("pods", "-l", f"component={OLDER.tunnel}", "-n", OLDER.namespace)
    await installed("label", *selected, "pod-template-generation-")
    await installed("apply", "-f", "-", stdin=render("--for", "openshift", "--names", str(OLDER.name_set)))
    await installed("rollout", "restart", "daemonset", "efs-stunnel", "-n", OLDER.namespace)
    bindings = ("edit-efs-manager", "edit-efs-worker", "view-efs-stunnel")
    await installed("delete", "rolebinding", *bindings, "-n", OLDER.namespace)
    binder = f"system:{OLDER.namespace}:controller:persistent-volume-binder"
    await installed("delete", "clusterrolebinding", binder)

    # The new tunnel of one node never becomes ready here, so the other node keeps the one that it has.
    await _wait_for_tunnels(installed, "updatedNumberScheduled", 1)
    uid = await installed(
        "get", "daemonset/efs-stunnel", "-n", OLDER.namespace, "-o", "jsonpath={.metadata.uid}"
    )
    pods = await _tunnel_pods(installed)
    assert len(pods) == 2
    assert set(pods.values()) == {uid}
    assert len(pods.keys() & old_pods.keys()) == 1
    for workload in WORKLOADS:
        limits = "jsonpath={.spec.template.spec.containers[0].resources.limits}"
        found = await installed("get", workload, "-n", OLDER.namespace, "-o", limits)
        assert json.loads(found) == {"memory": "512Mi"}


async def _install_older_system(kubectl: Kubectl) -> None:
    """Install the older system on two nodes, with tunnels that look healthy."""
    options = ("--for", "openshift", "--names", str(OLDER.name_set))
    await kubectl("apply", "-f", "-", stdin=render(*options))
    for name in ("first", "second"):
        metadata = {"name": name, "labels": {"kubernetes.io/os": "linux"}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        await kubectl("create", "-f", "-", stdin=yaml.safe_dump(node))
        # Nobody but this test judges the node.
        await kubectl("taint", "node", name, "node.kubernetes.io/not-ready:NoSchedule-")
    await kubectl("delete", *WORKLOADS, "-n", OLDER.namespace)
    await kubectl("create", "-f", str(OLDER_SYSTEM))
    await _wait_for_tunnels(kubectl, "currentNumberScheduled", 2)
    well = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    for pod in await _tunnel_pods(kubectl):
        patch = ("--subresource=status", "--patch", json.dumps(well))
        await kubectl("patch", "pod", pod, "-n", OLDER.namespace, *patch)
    await _wait_for_tunnels(kubectl, "numberReady", 2)


async def _wait_for_tunnels(kubectl: Kubectl, count: str, number: int) -> None:
    condition = f"--for=jsonpath={{.status.{count}}}={number}"
    await kubectl("wait", "daemonset/efs-stunnel", "-n", OLDER.namespace, condition, "--timeout=100s")


async def _tunnel_pods(kubectl: Kubectl) -> dict[str, str]:
    """The UID of the owner of each tunnel pod."""
    output = await kubectl("get", "pods", "-n", OLDER.namespace, "-l", "component=efs-stunnel", "-o", "json")
    metadata = [pod["metadata"] for pod in json.loads(output)["items"]]
    return {one["name"]: one["ownerReferences"][0]["uid"] for one in metadata}
