"""The chart with Helm: the same objects as ``kube-efs render``, and the effect of each value."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conformance.chart_changes import CHANGES, CSI, ELSEWHERE, MANAGER, NODE, TUNNEL, VARIABLES_WITH_CSI
from tests.conformance.helm import CHART, helm, keyed, objects, template
from tests.conformance.installing import render
from tests.conformance.kubectl import Kubectl
from tests.docs.blocks import Command, blocks_of, commands_for

from kube_efs.model.csi.access_point_tags import parse_tags
from kube_efs.model.errors import InvalidSetting
from kube_efs.model.names import NEW_INSTALLATION, UNNAMED_INSTALLATION, NameSet
from kube_efs.operator.forms.aws_driver_refusals import FOREIGN_VARIABLES, REFUSALS
from kube_efs.operator.forms.chart_values import chart_values, own_variables
from kube_efs.operator.manifests import RenderOptions, render_asset, render_manifests, values_of
from kube_efs.operator.platforms import Platform
from kube_efs.settings.installed import HEALTH_HOST, PROCESSES, InstalledSettings, setting_names
from kube_efs.settings.loading import load

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAMES = NEW_INSTALLATION.names
KEPT = {"helm.sh/resource-policy": "keep"}
AWS_DRIVER_NAMES = Path(__file__).with_name("aws_driver_chart_values.txt")


async def test_helm_reports_no_error_in_the_chart() -> None:
    answer = await helm("lint", "--strict", str(CHART))
    assert answer.status == 0, answer.output
    assert "0 chart(s) failed" in answer.output


@pytest.mark.parametrize(("csi", "only"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize("names", NameSet)
async def test_chart_gives_the_rendered_manifests_for_the_same_settings(
    names: NameSet, platform: Platform, csi: bool, only: bool
) -> None:
    options = RenderOptions(
        platform=platform,
        names=names,
        namespace="storage",
        image="registry.example.com/team/efs:1",
        provisioner="example.com/efs",
        storage_class_name="fast",
        region="eu-west-1",
        csi=csi,
        csi_only=only,
        kubelet_folder="/var/lib/k0s/kubelet",
        secrets=("team/role", "team/other") if csi else (),
        config_maps=("other/file-systems", "team/ids") if csi else (),
    )
    references = [
        {"namespace": "team", "secrets": ["role"]},
        {"namespace": "other", "configMaps": ["file-systems"]},
        {"namespace": "team", "secrets": ["role", "other"], "configMaps": ["ids"]},
    ]
    values: dict[str, Any] = {
        "platform": str(platform),
        "names": str(names),
        "image": {"repository": "registry.example.com/team/efs", "tag": "1"},
        "storageClass": {"name": "fast", "provisioner": "example.com/efs"},
        "region": "eu-west-1",
    }
    if csi:
        values["csi"] = {
            "enabled": True,
            "only": only,
            "kubeletDirectory": "/var/lib/k0s/kubelet",
            "classReferences": references,
        }

    found = await objects(values, namespace="storage")

    wanted = keyed([one for one in render_manifests(options) if one["kind"] != "Namespace"])
    for one in found.values():
        if one["kind"] == "CustomResourceDefinition":
            assert one["metadata"].pop("annotations") == KEPT
    assert found == wanted


@pytest.mark.parametrize("names", [None, ""], ids=["--reuse-values", "default"])
@pytest.mark.parametrize("expected", [NEW_INSTALLATION, UNNAMED_INSTALLATION])
async def test_namespace_determines_the_names_where_helm_cannot_read_the_cluster(
    names: str | None, expected: NameSet
) -> None:
    found = await objects({"names": names}, namespace=expected.names.namespace)
    wanted = render_manifests(RenderOptions(platform=Platform.KUBERNETES, names=expected))
    assert found == keyed([*wanted[1:]])


async def test_names_must_be_given_in_a_namespace_that_helm_cannot_read() -> None:
    # Argo CD would delete the objects of an earlier version, and so end all tunnels at once.
    answer = await template({}, namespace="storage")
    assert answer.status != 0
    assert (
        "names: Helm cannot read the cluster; set names: kube-efs for a new installation, "
        "names: openshift-efs-stunnel for one of an earlier version"
    ) in answer.errors


@pytest.mark.parametrize("namespace", ["fresh", NAMES.namespace])
@pytest.mark.parametrize("name_set", NameSet)
async def test_release_keeps_the_names_of_the_config_map_with_the_ports(
    kubectl: Kubectl, name_set: NameSet, namespace: str
) -> None:
    # What an uninstalled release leaves behind, and what volumes still depend on.
    await kubectl("create", "namespace", namespace)

    async def controllers() -> set[str]:
        dry = ("--dry-run=server", "--namespace", namespace, "--output", "json")
        answer = await helm("install", "efs", str(CHART), *dry, kubeconfig=kubectl.kubeconfig)
        assert answer.status == 0, answer.errors
        manifests = yaml.safe_load_all(json.loads(answer.output)["manifest"])
        return {one["metadata"]["name"] for one in manifests if one and one["kind"] == "Deployment"}

    assert await controllers() == {NAMES.controller}
    await kubectl("create", "configmap", name_set.names.config_map, "-n", namespace)
    assert await controllers() == {name_set.names.controller}
    await kubectl("delete", "namespace", namespace)


async def test_chart_requires_only_the_platform() -> None:
    wanted = render_manifests(RenderOptions(platform=Platform.OPENSHIFT))
    assert await objects({"platform": "openshift"}) == keyed([*wanted[1:]])


async def test_each_value_is_tried() -> None:
    refused = {one.path for one in REFUSALS}
    assert {*CHANGES, *ELSEWHERE, *refused} == {value.path for value in chart_values()}
    assert refused.isdisjoint({*CHANGES, *ELSEWHERE})


@pytest.mark.parametrize("path", CHANGES)
async def test_value_changes_only_what_it_documents(path: str) -> None:
    change = CHANGES[path]
    before = dict(_leaves(await objects(change.base)))
    after = dict(_leaves(await objects(_merged(change.base, path, change.value))))
    changed = {key: after.get(key) for key in {*before, *after} if before.get(key) != after.get(key)}
    if change.whole:
        changed = {key: text for key, text in changed.items() if key.endswith("metadata.name")}
    assert changed == change.gives


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"monitoring": {"enabled": True}}, ("controller-metrics", "rules")),
        ({"controller": {"observing": True}}, ("observing-rbac",)),
    ],
    ids=["monitoring", "observing"],
)
async def test_switch_adds_objects_of_the_operator_assets(
    values: Mapping[str, Any], names: tuple[str, ...]
) -> None:
    named = {"names": str(NEW_INSTALLATION)}
    found = await objects({**values, **named}, namespace="storage")
    without = await objects(named, namespace="storage")
    shown = values_of(RenderOptions(platform=Platform.KUBERNETES, namespace="storage"))
    wanted = keyed([one for name in names for one in render_asset(name, shown)])
    assert {key: one for key, one in found.items() if key not in without} == wanted


@pytest.mark.parametrize(
    ("values", "opened"),
    [
        pytest.param({}, set(), id="default"),
        pytest.param({"tunnel": {"env": {HEALTH_HOST: "127.0.0.1"}}}, set(), id="loopback"),
        pytest.param({"tunnel": {"env": {HEALTH_HOST: "0.0.0.0"}}}, {TUNNEL}, id="tunnels"),
        pytest.param({"node": {"env": {HEALTH_HOST: "0.0.0.0"}}}, {NODE}, id="CSI driver"),
        pytest.param(
            {"node": {"env": [{"name": HEALTH_HOST, "value": "0.0.0.0"}]}}, {TUNNEL, NODE}, id="list for both"
        ),
    ],
)
async def test_pod_monitors_are_those_of_processes_that_prometheus_can_reach(
    values: Mapping[str, Any], opened: set[str]
) -> None:
    found = await objects({**CSI, **values, "monitoring": {"enabled": True}})

    def listens_at(workload: str) -> list[str]:
        (container,) = found[workload]["spec"]["template"]["spec"]["containers"]
        return [one["value"] for one in container["env"] if one["name"] == HEALTH_HOST]

    assert {one for one in (TUNNEL, NODE) if listens_at(one) == ["0.0.0.0"]} == opened
    assert all(listens_at(one) == ["127.0.0.1"] for one in {TUNNEL, NODE} - opened)
    selected = {one["spec"]["selector"]["matchLabels"]["component"] for one in _of_kind(found, "PodMonitor")}
    assert {f"DaemonSet/{name}" for name in selected} == opened


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
        pytest.param(
            {"node": {"podLabels": {"app": "a"}}}, "propertyName 'app'", id="label of the AWS driver's pods"
        ),
        pytest.param({"node": {"affinity": {"podAntiAffinity": {}}}}, "podAntiAffinity", id="anti-affinity"),
        pytest.param({"storageClasses": [{"nam": "a"}]}, "nam", id="unknown field of a StorageClass"),
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


async def test_every_value_of_the_aws_driver_is_served_or_refused() -> None:
    names = {line for line in AWS_DRIVER_NAMES.read_text().splitlines() if not line.startswith("#")}
    refused = {one.path for one in REFUSALS}
    served = {value.path for value in chart_values()} - refused
    below = {name for name in names if name.partition(".")[0] in refused}
    assert names - served == {*(refused & names), *below}
    # Each refusal is about a value that users of that chart have.
    assert {name for name in refused if name not in names} == {"sidecars"}


SIDECARS = [line for line in AWS_DRIVER_NAMES.read_text().splitlines() if line.startswith("sidecars.")]


@pytest.mark.parametrize("path", [*(one.path for one in REFUSALS if one.path != "sidecars"), *SIDECARS])
async def test_value_that_is_not_served_is_refused_with_a_remedy(path: str) -> None:
    answer = await template(_merged(CSI, path, "distinctive"))
    assert answer.status != 0
    (remedy,) = [one.remedy for one in REFUSALS if f"{path}.".startswith(f"{one.path}.")]
    subject = path if path in SIDECARS else f'{path}: "distinctive"'
    assert f"{subject} is not served; {remedy}" in answer.errors


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("csi.only", True),
        ("csi.podTokens", False),
        ("csi.kubeletDirectory", "/data/kubelet"),
        ("csi.classReferences", [{"namespace": "team", "secrets": ["role"]}]),
        ("useHelmHooksForCSIDriver", True),
        ("node.env", {"LOGGING_LEVEL": "DEBUG"}),
        ("node.podAnnotations", {"team": "storage"}),
    ],
)
async def test_value_of_the_csi_driver_is_refused_without_it(path: str, value: Any) -> None:
    answer = await template(_merged({}, path, value))
    assert answer.status != 0
    assert f"{path} has no effect without the CSI driver; set csi.enabled" in answer.errors


@pytest.mark.parametrize("variables", [[], {}])
async def test_values_that_request_nothing_do_not_need_the_csi_driver(variables: object) -> None:
    values = {"csi": {"classReferences": []}, "node": {"env": variables}}
    assert await objects(values) == await objects({})


async def test_list_of_variables_of_nodes_applies_to_the_agent_without_the_csi_driver() -> None:
    variable = {"name": "LOGGING_LEVEL", "value": "DEBUG"}
    assert (await template({"node": {"env": [variable]}})).status == 0


async def test_all_faults_are_reported_at_once() -> None:
    answer = await template({"controller": {"timeout": "60s"}, "storageClasses": [{"name": "efs-sc"}]})
    assert answer.status != 0
    assert 'controller.timeout: "60s" is not served' in answer.errors
    assert "storageClasses has no effect without the CSI driver; set csi.enabled" in answer.errors


async def test_refused_value_may_be_the_default_of_the_aws_driver() -> None:
    values: Mapping[str, Any] = CSI
    for one in REFUSALS:
        values = _merged(values, one.path, one.usual)
    root = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0, "fsGroup": 0}
    values = _merged(values, "controller.securityContext", root)
    values = _merged(values, "controller.containerSecurityContext", {"privileged": True})
    values = _merged(values, "portRangeUpperBound", "21049")
    assert await objects(values) == await objects(CSI)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        pytest.param(
            {"image": {"repository": "example.com/eks/aws-efs-csi-driver"}},
            "image.repository: example.com/eks/aws-efs-csi-driver is the image of the AWS driver; remove it",
            id="image",
        ),
        pytest.param(
            {"image": {"tag": "v3.4.1"}}, "image.tag: v3.4.1 is a tag of the AWS driver; remove it", id="tag"
        ),
        pytest.param(
            {"portRangeUpperBound": 21050}, "use a port from 22049 to 65535", id="port below the first one"
        ),
        pytest.param(
            {"controller": {"env": [{"name": "FIPS_ENABLED", "value": "true"}]}},
            "controller.env: FIPS_ENABLED is not a setting here; use useFIPS",
            id="variable of the controller",
        ),
        pytest.param(
            {**CSI, "node": {"env": {"DISABLE_TAINT_WATCHER": "true"}}},
            "node.env: DISABLE_TAINT_WATCHER is not a setting here; use node.serviceAccount.disableMutation",
            id="variable of a node",
        ),
        pytest.param(
            {**CSI, "node": {"env": [{"name": "POD_NAME", "value": "a"}]}},
            "node.env: POD_NAME belongs to the chart; remove it",
            id="variable that the chart sets for the tunnels",
        ),
        *(
            pytest.param(
                {"controller": {"tags": {key: value}}},
                f"controller.tags: {key}:{value} is not a tag; name the key, and write a backslash before"
                " each blank and colon",
                id=f"tag with {words}",
            )
            for key, value, words in (
                ("cost center", "7", "a blank in its key"),
                ("team", "storage web", "a blank in its value"),
                ("a:b", "c", "a colon in its key"),
                ("a", "b:c", "a colon in its value"),
                ("a\\", "b", "an escaped separator"),
                ("a", "b\\", "an escape of the next tag"),
                ("", "b", "no key"),
            )
        ),
        pytest.param(
            {"controller": {"env": {"KUBE_EFS_LEADER_ELECTION": "false"}}},
            "controller.env: KUBE_EFS_LEADER_ELECTION belongs to the chart; remove it",
            id="two controllers that both lead",
        ),
        pytest.param(
            {"tunnel": {"env": {"KUBE_EFS_HEALTH_PORT": "9900"}}},
            "tunnel.env: KUBE_EFS_HEALTH_PORT belongs to the chart; remove it",
            id="variable that the probes depend on",
        ),
        pytest.param(
            {**CSI, "node": {"env": [{"name": "KUBE_EFS_HEALTH_PORT", "value": "9900"}]}},
            "node.env: KUBE_EFS_HEALTH_PORT is not a setting here; use node.healthPort",
            id="port of two processes on the network of the node",
        ),
        pytest.param(
            {"controller": {"env": {"KUBE_EFS_USAGE_INTERVALL_SECONDS": "60"}}},
            "controller.env: KUBE_EFS_USAGE_INTERVALL_SECONDS is not a setting of this process;"
            " use one of docs/settings.md",
            id="typo",
        ),
        pytest.param(
            {**CSI, "node": {"env": {"KUBE_EFS_TUNNEL_PORTS": "22049-23048"}}},
            "node.env: KUBE_EFS_TUNNEL_PORTS is not a setting of this process",
            id="setting of another process",
        ),
        pytest.param(
            {"tunnel": {"env": {HEALTH_HOST: "10.0.0.1"}}},
            "tunnel.env: KUBE_EFS_HEALTH_HOST: the kubelet probes 127.0.0.1; use 0.0.0.0 or 127.0.0.1",
            id="address without the probes",
        ),
        pytest.param(
            {**CSI, "node": {"env": [{"name": HEALTH_HOST, "valueFrom": {"fieldRef": {}}}]}},
            "node.env: KUBE_EFS_HEALTH_HOST: the kubelet probes 127.0.0.1; use 0.0.0.0 or 127.0.0.1",
            id="address that is not known",
        ),
        *(
            pytest.param(
                {"controller": {"env": {HEALTH_HOST: host}}},
                "controller.env: KUBE_EFS_HEALTH_HOST: the kubelet probes the address of the pod; use 0",
                id=f"controller without probes at {host}",
            )
            for host in ("127.0.0.1", "127.1.1.1", "localhost", "::1")
        ),
        pytest.param(
            {"platform": "openshift", "controller": {"hostNetwork": True}},
            "controller.hostNetwork is not allowed by any SecurityContextConstraints of the chart",
            id="host network of OpenShift",
        ),
        pytest.param(
            {
                "controller": {
                    "podDisruptionBudget": {"enabled": True, "minAvailable": 0, "maxUnavailable": 1}
                }
            },
            "controller.podDisruptionBudget has minAvailable and maxUnavailable, of which Kubernetes accepts",
            id="two numbers of a PodDisruptionBudget",
        ),
        pytest.param(
            {"controller": {"env": [{"name": "AWS_REGION", "value": "eu-west-1"}]}},
            "controller.env: AWS_REGION is not a setting here; use region",
            id="region",
        ),
        pytest.param(
            {**CSI, **{name: {"serviceAccount": {"name": "efs-sa"}} for name in ("controller", "node")}},
            f"serviceAccount.name: efs-sa, efs-sa, {NAMES.node_account}, {NAMES.worker_account} must differ",
            id="one account for two processes",
        ),
        pytest.param(
            {"node": {"serviceAccount": {"name": "efs-csi-node-sa"}}},
            "node.serviceAccount.name has no effect without the CSI driver; set csi.enabled",
            id="value of a node without the CSI driver",
        ),
    ],
)
async def test_value_that_cannot_be_meant_is_refused_with_a_remedy(
    values: Mapping[str, Any], told: str
) -> None:
    answer = await template(values)
    assert answer.status != 0
    assert told in answer.errors


@pytest.mark.parametrize(
    ("values", "old", "new", "workload"),
    [
        ("controller", NAMES.controller_account, "efs-csi-controller-sa", MANAGER),
        ("node", NAMES.tunnel_account, "efs-csi-node-sa", TUNNEL),
    ],
)
@pytest.mark.parametrize("platform", Platform)
async def test_name_of_a_service_account_changes_wherever_it_is_named(
    platform: Platform, values: str, old: str, new: str, workload: str
) -> None:
    base = {
        **CSI,
        "platform": str(platform),
        "monitoring": {"enabled": True},
        "controller": {"observing": True},
    }
    base["csi"] = {"enabled": True, "classReferences": [{"namespace": "team", "secrets": ["role"]}]}
    before = await objects(base)
    after = await objects(_merged(base, f"{values}.serviceAccount.name", new))

    user = f"system:serviceaccount:{NAMES.namespace}:{old}"
    expected: dict[str, Any] = {}
    for key, one in before.items():
        if key == f"ServiceAccount/{old}":
            expected[f"ServiceAccount/{new}"] = {**one, "metadata": {**one["metadata"], "name": new}}
            continue
        for subject in one.get("subjects", ()):
            if subject["kind"] == "ServiceAccount" and subject["name"] == old:
                subject["name"] = new
        expected[key] = one
    pod = expected[workload]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == old
    pod["serviceAccountName"] = new
    text = yaml.safe_dump(expected).replace(user, user.removesuffix(old) + new)
    assert after == yaml.safe_load(text)


@pytest.mark.parametrize(("values", "workload"), [("controller", MANAGER), ("node", TUNNEL)])
async def test_pods_have_the_pull_secrets_that_an_existing_account_may_lack(
    values: str, workload: str
) -> None:
    given = {**CSI, "imagePullSecrets": ["registry"]}
    created = await objects(given)
    found = await objects(_merged(given, f"{values}.serviceAccount.create", False))
    assert "imagePullSecrets" not in created[workload]["spec"]["template"]["spec"]
    assert found[workload]["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize(
    "controller",
    [
        pytest.param({"hostNetwork": True, "env": {HEALTH_HOST: "127.0.0.1"}}, id="on the host network"),
        pytest.param({"env": {HEALTH_HOST: "::"}}, id="all addresses"),
        pytest.param(
            {"env": [{"name": HEALTH_HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]},
            id="address of the pod",
        ),
    ],
)
async def test_controller_may_listen_where_the_kubelet_can_probe_it(controller: Mapping[str, Any]) -> None:
    container = (await objects({"controller": controller}))[MANAGER]["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert [one for one in container["env"] if one["name"] == HEALTH_HOST]


async def test_each_term_of_a_node_affinity_excludes_nodes_without_pods() -> None:
    usual = {"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["fargate", "hybrid"]}
    storage = {"key": "team", "operator": "In", "values": ["storage"]}
    name = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [storage]}}]
    # An empty term selects no node, and must not select those that are not excluded.
    terms = [{"matchExpressions": [storage]}, {"matchFields": [name]}, {}]
    given = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    found = await objects({**CSI, "node": {"affinity": {"nodeAffinity": given}}})
    for workload in (NODE, TUNNEL):
        affinity = found[workload]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        assert affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
            {"matchExpressions": [storage, usual]},
            {"matchFields": [name], "matchExpressions": [usual]},
            {},
        ]
        assert affinity["preferredDuringSchedulingIgnoredDuringExecution"] == preferred


@pytest.mark.parametrize("process", PROCESSES)
async def test_chart_refuses_the_variables_that_the_operator_refuses(process: str) -> None:
    names = {name for kind in PROCESSES.values() for name in setting_names(kind)}
    given = dict.fromkeys({*names, "KUBE_EFS_TYPO", "HTTPS_PROXY", "AWS_ACCESS_KEY_ID"}, "0.0.0.0")

    def is_refused_by_the_operator(name: str) -> bool:
        variable = f"KUBE_EFS_{process.upper()}_SETTINGS"
        try:
            load(InstalledSettings, {variable: json.dumps({name: given[name]})})
        except InvalidSetting as error:
            # The chart has no certificate for metrics, so its users may set these variables.
            of_openshift = "on OpenShift" in str(error)
            kept = "is set by" in str(error) or "is always" in str(error)
            return (kept and not of_openshift) or "does not have" in str(error)
        return False

    answer = await template({**CSI, process: {"env": given}})

    refused = {*re.findall(rf"^{process}\.env: (\w+)", answer.errors, flags=re.MULTILINE)}
    # A list of variables of the node's pod is for the tunnel agent too.
    of_chart = {
        name for pod in {process, *({"tunnel"} if process == "node" else ())} for name in own_variables(pod)
    }
    wanted = {name for name in given if is_refused_by_the_operator(name)}
    assert refused == wanted | ({*of_chart, *FOREIGN_VARIABLES} & given.keys())


async def test_list_for_both_pods_of_a_node_may_have_settings_of_either() -> None:
    names = ("KUBE_EFS_TUNNEL_PORTS", "KUBE_EFS_VOLUME_METRICS")
    listed = [{"name": name, "value": "a"} for name in names]
    found = await objects({**CSI, "node": {"env": listed}})
    for workload in (TUNNEL, NODE):
        (container,) = found[workload]["spec"]["template"]["spec"]["containers"]
        assert [one for one in container["env"] if one["name"] in names] == listed


async def test_variables_can_be_a_list_as_in_a_container() -> None:
    listed = [
        {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
        {"name": "NO_PROXY", "valueFrom": {"configMapKeyRef": {"name": "proxy", "key": "none"}}},
    ]
    values = {
        **CSI,
        "controller": {"env": listed},
        "node": {"env": listed},
        "tunnel": {"env": {"NO_PROXY": "x"}},
    }

    found = await objects(values)

    def variables(target: str) -> list[Any]:
        (container,) = found[target]["spec"]["template"]["spec"]["containers"]
        environment: list[Any] = container["env"]
        return environment[VARIABLES_WITH_CSI[target] :]

    assert variables(MANAGER) == variables(NODE) == listed
    # The tunnels have those of the node's pod too, and their own ones win.
    assert variables(TUNNEL) == [{"name": "NO_PROXY", "value": "x"}, listed[0]]


async def test_tags_with_escaped_blanks_and_colons_are_those_that_the_controller_reads() -> None:
    given = {"cost\\ center": "7\\:8", "team": ""}
    found = await objects({"controller": {"tags": given}})
    (container,) = found[MANAGER]["spec"]["template"]["spec"]["containers"]
    (text,) = [one["value"] for one in container["env"] if one["name"] == "KUBE_EFS_ACCESS_POINT_TAGS"]
    assert {tag.key: tag.value for tag in parse_tags(text)} == {"cost center": "7:8", "team": ""}


async def test_variable_of_the_user_takes_precedence_over_another_value() -> None:
    found = await objects({"debugLogs": True, "controller": {"env": {"LOGGING_LEVEL": "WARNING"}}})
    (container,) = found[MANAGER]["spec"]["template"]["spec"]["containers"]
    levels = [one["value"] for one in container["env"] if one["name"] == "LOGGING_LEVEL"]
    assert levels == ["WARNING"]


async def test_release_is_installed_upgraded_and_removed(kubectl: Kubectl) -> None:
    release = ("efs", str(CHART), "--namespace", "charted", "--set", "storageClass.name=charted")

    async def run(*arguments: str) -> str:
        answer = await helm(*arguments, kubeconfig=kubectl.kubeconfig)
        assert answer.status == 0, answer.errors
        return answer.output

    # What is there already is taken over.
    charted = ("--namespace", "charted", "--create-namespace", "--storage-class", "charted")
    rendered = render("--for", "kubernetes", "--names", str(UNNAMED_INSTALLATION), *charted)
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

    # It would end all tunnels at once.
    renamed = await helm("upgrade", *release, "--set", "names=kube-efs", kubeconfig=kubectl.kubeconfig)
    assert renamed.status != 0
    told = 'names "kube-efs": the namespace has other names in use; '
    assert f"{told}set names: openshift-efs-stunnel" in renamed.errors

    await run("uninstall", "efs", "--namespace", "charted", "--wait")
    left = await kubectl("get", "deployment,daemonset,role,clusterrole", "-A", "-o", "name")
    assert [name for name in left.split() if "efs" in name] == []
    # What people have made of the kind would go with it.
    assert await kubectl("get", "crd/sharedvolumes.aws-efs.managed.openshift.io", "-o", "name")
    await kubectl("delete", "crd/sharedvolumes.aws-efs.managed.openshift.io", "namespace/charted")


async def test_documented_helm_commands_work(kubectl: Kubectl) -> None:
    install, upgrade, uninstall = _documented()[:3]

    async def workloads_after(command: Command) -> set[str]:
        program, *arguments = command.text.split()
        assert program == "helm"
        answer = await helm(*arguments, kubeconfig=kubectl.kubeconfig)
        assert answer.status == 0, answer.errors
        left = await kubectl("get", "deployment,daemonset", "-n", NAMES.namespace, "-o", "name")
        return {*left.split()}

    first = {f"deployment.apps/{NAMES.controller}", f"daemonset.apps/{NAMES.tunnel}"}
    assert await workloads_after(install) == first
    assert await workloads_after(upgrade) == {*first, f"daemonset.apps/{NAMES.node}"}
    assert await workloads_after(uninstall) == set()


@pytest.mark.parametrize("has_hook", [False, True], ids=["take ownership", "hook"])
async def test_release_of_the_aws_driver_is_upgraded_as_documented(
    kubectl: Kubectl, tmp_path: Path, has_hook: bool
) -> None:
    _write_aws_driver_chart(tmp_path / "chart")
    release = ("install", "aws-efs-csi-driver", str(tmp_path / "chart"), "--namespace", "kube-system")
    answer = await helm(*release, kubeconfig=kubectl.kubeconfig)
    assert answer.status == 0, answer.errors

    async def uid(name: str) -> str:
        return await kubectl("get", name, "-n", "kube-system", "-o", "jsonpath={.metadata.uid}")

    accounts = [f"serviceaccount/efs-csi-{name}-sa" for name in ("controller", "node")]
    before = [await uid(one) for one in accounts]
    (page,) = [block.text for block in blocks_of("docs/helm.md") if block.file == "values.yaml"]
    mine = _merged(yaml.safe_load(page), "controller.replicaCount", 3)
    mine = {**mine, "storageClasses": [{"name": "efs-sc"}], "useHelmHooksForCSIDriver": has_hook}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(mine))

    # Helm would delete the pods that hold the tunnels, with their DaemonSet.
    upgrade = ("upgrade", "aws-efs-csi-driver", str(CHART), "-n", "kube-system", "-f", str(values))
    for names in ("aws-efs-csi-driver", "kube-efs"):
        answer = await helm(*upgrade, "--set", f"names={names}", kubeconfig=kubectl.kubeconfig)
        assert answer.status != 0
        assert "kubectl delete daemonset -n kube-system efs-csi-node --cascade=orphan" in answer.errors
    installed = await kubectl("get", "deployment,daemonset", "-n", "kube-system", "-o", "name")
    assert {*installed.split()} == {"deployment.apps/efs-csi-controller", "daemonset.apps/efs-csi-node"}

    for command in _documented()[3:]:
        program, *arguments = command.text.replace("values.yaml", str(values)).split()
        if program == "helm":
            given = [one for one in arguments if not has_hook or one != "--take-ownership"]
            answer = await helm(*given, kubeconfig=kubectl.kubeconfig)
            assert answer.status == 0, answer.errors
        else:
            await kubectl(*arguments)

    # Pod Identity binds roles to the names, and the annotations bind roles to the accounts.
    assert [await uid(one) for one in accounts] == before
    left = await kubectl("get", "deployment,daemonset", "-n", "kube-system", "-o", "name")
    assert {*left.split()} == {
        "deployment.apps/efs-csi-controller",
        "daemonset.apps/efs-csi-tunnel",
        "daemonset.apps/efs-csi-node",
    }
    manager = await kubectl("get", "deployment/efs-csi-controller", "-n", "kube-system", "-o", "json")
    assert json.loads(manager)["spec"]["replicas"] == 3
    driver = await kubectl("get", "csidriver/efs.csi.aws.com", "-o", "jsonpath={.spec.fsGroupPolicy}")
    assert driver == "None"
    # The pods of the AWS driver refuse volumes with tokens.
    tokens = "jsonpath={.spec.requiresRepublish}{.spec.tokenRequests}"
    assert await kubectl("get", "csidriver/efs.csi.aws.com", "-o", tokens) == "false"
    kept = await kubectl("get", "storageclass/efs-sc", "-o", "jsonpath={.provisioner}")
    assert kept == "efs.csi.aws.com"
    await helm("uninstall", "aws-efs-csi-driver", "-n", "kube-system", kubeconfig=kubectl.kubeconfig)
    await kubectl("delete", "crd/sharedvolumes.aws-efs.managed.openshift.io")


def _documented() -> list[Command]:
    return commands_for("docs/helm.md", "tests/conformance/test_helm_chart.py")


def _write_aws_driver_chart(folder: Path) -> None:
    """A chart with the objects of the AWS driver that matter for an upgrade: names, selectors and owners."""
    hook = {
        "helm.sh/hook": "pre-install, pre-upgrade",
        "helm.sh/hook-delete-policy": "before-hook-creation",
        "helm.sh/resource-policy": "keep",
    }
    workloads = []
    for kind, name in (("Deployment", "controller"), ("DaemonSet", "node")):
        labels = {"app": f"efs-csi-{name}", "app.kubernetes.io/name": "aws-efs-csi-driver"}
        pod = {
            "serviceAccountName": f"efs-csi-{name}-sa",
            "containers": [{"name": "efs-plugin", "image": "aws-efs-csi-driver"}],
        }
        workloads.append(
            {
                "apiVersion": "apps/v1",
                "kind": kind,
                "metadata": {"name": f"efs-csi-{name}"},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                },
            }
        )
        workloads.append(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": f"efs-csi-{name}-sa"}}
        )
    others = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": "efs.csi.aws.com", "annotations": hook},
            "spec": {"attachRequired": False},
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "efs-sc"},
            "provisioner": "efs.csi.aws.com",
        },
    ]
    (folder / "templates").mkdir(parents=True)
    chart = {"apiVersion": "v2", "name": "aws-efs-csi-driver", "version": "4.4.1"}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(chart))
    text = yaml.safe_dump_all([*workloads, *others])
    (folder / "templates" / "all.yaml").write_text(text)


def _of_kind(found: Mapping[str, Any], kind: str) -> list[Any]:
    return [one for one in found.values() if one["kind"] == kind]


def _merged(base: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {**base, first: _merged(base.get(first, {}), rest, value) if rest else value}


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
