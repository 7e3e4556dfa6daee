"""The chart with Helm: the same objects as ``kube-efs render``, and the effect of each value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.conformance.helm import CHART, helm, keyed, objects, template
from tests.conformance.installing import render
from tests.conformance.kubectl import Kubectl
from tests.docs.blocks import Command, commands_for

from kube_efs.operator.forms.chart_values import chart_values
from kube_efs.operator.manifests import RenderOptions, render_asset, render_manifests
from kube_efs.operator.platforms import Platform

pytestmark = pytest.mark.asyncio(loop_scope="session")

CSI: Mapping[str, Any] = {"csi": {"enabled": True}}
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
MANAGER, TUNNEL, NODE = "Deployment/efs-manager", "DaemonSet/efs-stunnel", "DaemonSet/efs-csi-node"
KEPT = {"helm.sh/resource-policy": "keep"}
CLASS = "StorageClass/efs-stunnel"
POD = "spec.template.spec"
WORKER_IMAGE = f"{MANAGER}.{POD}.containers.0.env.3.value"


async def test_helm_reports_no_error_in_the_chart() -> None:
    answer = await helm("lint", "--strict", str(CHART))
    assert answer.status == 0, answer.output
    assert "0 chart(s) failed" in answer.output


@pytest.mark.parametrize("csi", [False, True], ids=["without", "csi"])
@pytest.mark.parametrize("platform", Platform)
async def test_chart_gives_the_rendered_manifests_for_the_same_settings(
    platform: Platform, csi: bool
) -> None:
    options = RenderOptions(
        platform=platform,
        namespace="storage",
        image="registry.example.com/team/efs:1",
        provisioner="example.com/efs",
        storage_class_name="fast",
        region="eu-west-1",
        csi=csi,
        kubelet_folder="/var/lib/k0s/kubelet",
        secrets=("team/role", "team/other") if csi else (),
        config_maps=("other/file-systems",) if csi else (),
    )
    references = [
        {"namespace": "team", "secrets": ["role", "other"]},
        {"namespace": "other", "configMaps": ["file-systems"]},
    ]
    values = {
        "platform": str(platform),
        "image": {"repository": "registry.example.com/team/efs", "tag": "1"},
        "storageClass": {"name": "fast", "provisioner": "example.com/efs"},
        "region": "eu-west-1",
        "csi": {"enabled": csi, "kubeletDirectory": "/var/lib/k0s/kubelet", "classReferences": references},
    }

    found = await objects(values, namespace="storage")

    wanted = keyed([one for one in render_manifests(options) if one["kind"] != "Namespace"])
    for one in found.values():
        if one["kind"] == "CustomResourceDefinition":
            assert one["metadata"].pop("annotations") == KEPT
    assert found == wanted


async def test_chart_requires_only_the_platform() -> None:
    wanted = render_manifests(RenderOptions(platform=Platform.OPENSHIFT))
    assert await objects({"platform": "openshift"}) == keyed([*wanted[1:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The changes of a value, by object and path; None for a removed field.

    ``base`` are the other values.
    """

    value: Any
    gives: Mapping[str, Any]
    base: Mapping[str, Any] = field(default_factory=dict)


def _of_workload(name: str, target: str, account: str, base: Mapping[str, Any]) -> dict[str, Change]:
    pod = f"{target}.{POD}"
    count = {"controller": 4, "tunnel": 4, "node": 6}[name]
    added = {"key": "dedicated", "operator": "Exists"}
    tolerated = {"key": "dedicated", "operator": "Exists"} if name == "controller" else added
    return {
        f"{name}.env": Change(
            value={"LOGGING_LEVEL": 'a "b"\n{{ c }}'},
            gives={
                f"{pod}.containers.0.env.{count}.name": "LOGGING_LEVEL",
                f"{pod}.containers.0.env.{count}.value": 'a "b"\n{{ c }}',
            },
            base=base,
        ),
        f"{name}.serviceAccountAnnotations": Change(
            value={"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/efs"},
            gives={
                f"ServiceAccount/{account}.metadata.annotations.eks.amazonaws.com/role-arn": (
                    "arn:aws:iam::1:role/efs"
                )
            },
            base=base,
        ),
        f"{name}.podAnnotations": Change(
            value={"team": "storage"},
            gives={f"{target}.spec.template.metadata.annotations.team": "storage"},
            base=base,
        ),
        f"{name}.nodeSelector": Change(
            value={"pool": "a"}, gives={f"{pod}.nodeSelector.pool": "a"}, base=base
        ),
        f"{name}.tolerations": Change(
            value=[tolerated],
            gives={
                **({} if name != "controller" else {f"{pod}.tolerations.0.operator": "Exists"}),
                f"{pod}.tolerations.0.key": "dedicated",
            },
            base=base,
        ),
        f"{name}.resources": Change(
            value={"limits": {"memory": "1Gi"}},
            gives={f"{pod}.containers.0.resources.limits.memory": "1Gi"},
            base=base,
        ),
    }


CHANGES: Mapping[str, Change] = {
    "image.repository": Change(
        value="example.com/efs",
        gives={
            f"{MANAGER}.{POD}.containers.0.image": "example.com/efs:t",
            f"{TUNNEL}.{POD}.containers.0.image": "example.com/efs:t",
            WORKER_IMAGE: "example.com/efs:t",
        },
        base={"image": {"tag": "t"}},
    ),
    "image.tag": Change(
        value="edge",
        gives={
            f"{MANAGER}.{POD}.containers.0.image": "efs:edge",
            f"{TUNNEL}.{POD}.containers.0.image": "efs:edge",
            WORKER_IMAGE: "efs:edge",
        },
        base={"image": {"repository": "efs"}},
    ),
    "image.digest": Change(
        value=DIGEST,
        gives={
            f"{MANAGER}.{POD}.containers.0.image": f"efs@{DIGEST}",
            f"{TUNNEL}.{POD}.containers.0.image": f"efs@{DIGEST}",
            WORKER_IMAGE: f"efs@{DIGEST}",
        },
        base={"image": {"repository": "efs"}},
    ),
    "image.pullPolicy": Change(
        value="Always",
        gives={
            f"{MANAGER}.{POD}.containers.0.imagePullPolicy": "Always",
            f"{TUNNEL}.{POD}.containers.0.imagePullPolicy": "Always",
            f"{TUNNEL}.{POD}.initContainers.0.imagePullPolicy": "Always",
            f"{NODE}.{POD}.containers.0.imagePullPolicy": "Always",
        },
        base=CSI,
    ),
    "image.pullSecrets": Change(
        value=[{"name": "registry"}],
        gives={
            f"ServiceAccount/{name}.imagePullSecrets.0.name": "registry"
            for name in ("efs-manager", "efs-stunnel", "efs-worker", "efs-csi-node")
        },
        base=CSI,
    ),
    "region": Change(
        value="eu-west-1",
        gives={
            f"{MANAGER}.{POD}.containers.0.env.4.name": "AWS_REGION",
            f"{MANAGER}.{POD}.containers.0.env.4.value": "eu-west-1",
            f"{TUNNEL}.{POD}.containers.0.env.4.name": "AWS_REGION",
            f"{TUNNEL}.{POD}.containers.0.env.4.value": "eu-west-1",
        },
    ),
    "storageClass.name": Change(
        value="fast",
        gives={
            f"{CLASS}.metadata.name": None,
            "StorageClass/fast.metadata.name": "fast",
        },
    ),
    "storageClass.create": Change(value=False, gives={f"{CLASS}.metadata.name": None}),
    "storageClass.provisioner": Change(
        value="example.com/efs",
        gives={
            f"{CLASS}.provisioner": "example.com/efs",
            f"{MANAGER}.{POD}.containers.0.env.2.value": "example.com/efs",
        },
    ),
    "storageClass.parameters": Change(
        value={"default_file_system_id": "fs-1"},
        gives={f"{CLASS}.parameters.default_file_system_id": "fs-1"},
    ),
    "storageClass.reclaimPolicy": Change(value="Retain", gives={f"{CLASS}.reclaimPolicy": "Retain"}),
    "storageClass.annotations": Change(
        value={"storageclass.kubernetes.io/is-default-class": "true"},
        gives={f"{CLASS}.metadata.annotations.storageclass.kubernetes.io/is-default-class": "true"},
    ),
    "controller.replicas": Change(value=1, gives={f"{MANAGER}.spec.replicas": 1}),
    "tunnel.updateStrategy": Change(
        value={"type": "OnDelete", "rollingUpdate": None},
        gives={
            f"{TUNNEL}.spec.updateStrategy.type": "OnDelete",
            f"{TUNNEL}.spec.updateStrategy.rollingUpdate.maxUnavailable": None,
        },
    ),
    **_of_workload("controller", MANAGER, "efs-manager", {}),
    **_of_workload("tunnel", TUNNEL, "efs-stunnel", {}),
    **_of_workload("node", NODE, "efs-csi-node", CSI),
}
# Whole objects, and the whole installation; the tests above and below are about them.
ELSEWHERE = {
    "platform",
    "csi.enabled",
    "csi.kubeletDirectory",
    "csi.classReferences",
    "controller.observing",
    "monitoring.enabled",
}


async def test_each_value_is_tried() -> None:
    assert {*CHANGES, *ELSEWHERE} == {value.path for value in chart_values()}


@pytest.mark.parametrize("path", CHANGES)
async def test_value_changes_only_what_it_documents(path: str) -> None:
    change = CHANGES[path]
    before = dict(_leaves(await objects(change.base)))
    after = dict(_leaves(await objects(_merged(change.base, path, change.value))))
    changed = {key: after.get(key) for key in {*before, *after} if before.get(key) != after.get(key)}
    if path in {"storageClass.name", "storageClass.create"}:  # an object comes or goes as a whole
        changed = {key: text for key, text in changed.items() if key.endswith("metadata.name")}
    assert changed == change.gives


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"monitoring": {"enabled": True}}, ("controller-metrics", "pod-monitors", "rules")),
        ({"controller": {"observing": True}}, ("observing-rbac",)),
    ],
    ids=["monitoring", "observing"],
)
async def test_switch_adds_objects_of_the_operator_assets(
    values: Mapping[str, Any], names: tuple[str, ...]
) -> None:
    found = await objects(values, namespace="storage")
    without = await objects({}, namespace="storage")
    wanted = keyed([one for name in names for one in render_asset(name, {"namespace": "storage"})])
    assert {key: one for key, one in found.items() if key not in without} == wanted


@pytest.mark.parametrize(
    ("values", "field"),
    [
        pytest.param({"platform": "openshfit"}, "platform", id="unknown platform"),
        pytest.param({"csi": {"enable": True}}, "enable", id="unknown value"),
        pytest.param({"region": 'us"east'}, "region", id="region with a quote"),
        pytest.param({"storageClass": {"name": "_"}}, "name", id="StorageClass name with an underscore"),
        pytest.param({"csi": {"kubeletDirectory": "/a/../b"}}, "kubeletDirectory", id="directory with dots"),
        pytest.param({"image": {"digest": "latest"}}, "digest", id="tag instead of a digest"),
        pytest.param({"controller": {"env": {"A": 1}}}, "A", id="number as a variable name"),
        pytest.param({"tunnel": {"env": {"NODE_NAME": "a"}}}, "NODE_NAME", id="variable that the chart sets"),
        pytest.param(
            {"csi": {"classReferences": ["a/b"]}}, "classReferences", id="text instead of a reference"
        ),
    ],
)
async def test_invalid_values_are_refused_by_name(values: Mapping[str, Any], field: str) -> None:
    answer = await template(values)
    assert answer.status != 0
    assert "values don't meet the specifications" in answer.errors
    assert field in answer.errors


async def test_release_is_installed_upgraded_and_removed(kubectl: Kubectl) -> None:
    release = ("efs", str(CHART), "--namespace", "charted", "--set", "storageClass.name=charted")

    async def run(*arguments: str) -> str:
        answer = await helm(*arguments, kubeconfig=kubectl.kubeconfig)
        assert answer.status == 0, answer.errors
        return answer.output

    # What is there already is taken over.
    rendered = render("--for", "kubernetes", "--namespace", "charted", "--storage-class", "charted")
    await kubectl("apply", "-f", "-", stdin=rendered)
    notes = await run("install", *release, "--take-ownership")
    manager = await kubectl("get", "deployment/efs-manager", "-n", "charted", "-o", "yaml")
    assert "app.kubernetes.io/managed-by: Helm" in manager
    assert "kubectl label namespace charted pod-security.kubernetes.io/enforce=privileged" in notes
    first = await kubectl("get", "deployment,daemonset,serviceaccount", "-n", "charted", "-o", "name")
    assert {"deployment.apps/efs-manager", "daemonset.apps/efs-stunnel"} <= {*first.split()}

    await run("upgrade", *release, "--set", "csi.enabled=true", "--set", "tunnel.env.LOGGING_LEVEL=DEBUG")
    await kubectl("get", "daemonset/efs-csi-node", "csidriver/efs.csi.aws.com", "-n", "charted")
    await kubectl("wait", "crd/sharedvolumes.aws-efs.managed.openshift.io", "--for=condition=Established")
    tunnel = await kubectl("get", "daemonset/efs-stunnel", "-n", "charted", "-o", "yaml")
    assert "value: DEBUG" in tunnel

    await run("uninstall", "efs", "--namespace", "charted", "--wait")
    left = await kubectl("get", "deployment,daemonset,role,clusterrole", "-A", "-o", "name")
    assert [name for name in left.split() if "efs" in name] == []
    # What people have made of the kind would go with it.
    assert await kubectl("get", "crd/sharedvolumes.aws-efs.managed.openshift.io", "-o", "name")
    await kubectl("delete", "crd/sharedvolumes.aws-efs.managed.openshift.io", "namespace/charted")


async def test_documented_helm_commands_work(kubectl: Kubectl) -> None:
    install, upgrade, uninstall = commands_for("docs/helm.md", "tests/conformance/test_helm_chart.py")

    async def workloads_after(command: Command) -> set[str]:
        program, *arguments = command.text.split()
        assert program == "helm"
        answer = await helm(*arguments, kubeconfig=kubectl.kubeconfig)
        assert answer.status == 0, answer.errors
        left = await kubectl("get", "deployment,daemonset", "-n", "openshift-efs-stunnel", "-o", "name")
        return {*left.split()}

    first = {"deployment.apps/efs-manager", "daemonset.apps/efs-stunnel"}
    assert await workloads_after(install) == first
    assert await workloads_after(upgrade) == {*first, "daemonset.apps/efs-csi-node"}
    assert await workloads_after(uninstall) == set()


def _merged(base: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    parent, _, last = path.rpartition(".")
    return {**base, parent: {**base.get(parent, {}), last: value}} if parent else {**base, last: value}


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is not a mapping or list, by its path."""
    match node:
        case Mapping():
            entries = node.items()
        case list():
            entries = dict(enumerate(node)).items()
        case _:
            yield prefix, node
            return
    for key, value in entries:
        yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
