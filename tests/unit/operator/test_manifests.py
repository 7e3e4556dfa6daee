import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from kube_efs.model.errors import InvalidSetting
from kube_efs.model.targets import CONFIG_MAP_NAME
from kube_efs.operator.manifests import Manifest, RenderOptions, load_asset, render_manifests, render_text
from kube_efs.operator.platforms import Platform
from kube_efs.provisioning.worker_pods import LABELS
from kube_efs.settings import DEFAULT_LEASE, CommonSettings, ControllerSettings, TunnelSettings, own_image

IMAGE = "registry.example.com/kube-efs:1.2.3"
PROCESSES = [
    pytest.param("efs-manager", "controller", ControllerSettings, id="controller"),
    pytest.param("efs-stunnel", "tunnel", TunnelSettings, id="tunnel"),
]


class _YamlFile(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "yaml"


@pytest.fixture
def yaml_file(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(_YamlFile)


def _find(manifests: tuple[Manifest, ...], kind: str, name: str) -> Manifest:
    (found,) = [one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def _workload(platform: Platform, name: str) -> Any:
    kind = "Deployment" if name == "efs-manager" else "DaemonSet"
    return _find(render_manifests(RenderOptions(platform=platform)), kind, name)["spec"]["template"]["spec"]


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from (*_strings(key), *_strings(value))
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value)


@pytest.mark.parametrize("platform", Platform)
def test_the_whole_installation_is_as_reviewed(platform: Platform, yaml_file: SnapshotAssertion) -> None:
    assert render_text(RenderOptions(platform=platform, image=IMAGE), as_json=False) == yaml_file


@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize("region", [None, "eu-west-1"])
def test_every_placeholder_is_filled(platform: Platform, region: str | None) -> None:
    manifests = render_manifests(RenderOptions(platform=platform, region=region))
    assert [text for text in _strings(list(manifests)) if re.search(r"[{}]|\bNone\b", text)] == []


def test_every_option_reaches_the_objects() -> None:
    options = RenderOptions(
        platform=Platform.OPENSHIFT,
        namespace="storage",
        image=IMAGE,
        provisioner="example.com/efs",
        storage_class_name="fast",
        region="eu-west-1",
    )
    manifests = render_manifests(options)
    namespaces = {one["metadata"].get("namespace", "storage") for one in manifests}
    assert namespaces == {"storage"}
    assert _find(manifests, "Namespace", "storage")
    assert _find(manifests, "StorageClass", "fast")["provisioner"] == "example.com/efs"
    constraints = _find(manifests, "SecurityContextConstraints", "efs-stunnel-worker")
    assert constraints["users"] == ["system:serviceaccount:storage:efs-worker"]
    subjects = _find(manifests, "ClusterRoleBinding", "kube-efs-controller:storage")["subjects"]
    assert subjects == [{"kind": "ServiceAccount", "name": "efs-manager", "namespace": "storage"}]
    (container,) = _find(manifests, "Deployment", "efs-manager")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == IMAGE
    values = {one["name"]: one.get("value") for one in container["env"]}
    assert values["STORAGE_PROVISIONER_NAME"] == "example.com/efs"
    assert values["WORKER_IMAGE"] == IMAGE
    assert values["AWS_REGION"] == "eu-west-1"


def test_a_value_cannot_change_the_structure() -> None:
    with pytest.raises(InvalidSetting, match=r"^image: 'a\\nb: c' is not acceptable; use an image's name"):
        RenderOptions(platform=Platform.KUBERNETES, image="a\nb: c")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("namespace", "Storage", id="upper case"),
        pytest.param("namespace", "a.b", id="a namespace with a dot"),
        pytest.param("namespace", "", id="nothing"),
        pytest.param("namespace", "a" * 64, id="64 characters"),
        pytest.param("image", "-rm", id="an image like a flag"),
        pytest.param("provisioner", "a/b/c", id="two slashes"),
        pytest.param("storage_class_name", "_", id="an underscore"),
        pytest.param("region", "us east", id="a blank"),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: str) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(InvalidSetting) as caught:
        RenderOptions(platform=Platform.KUBERNETES, **options)
    assert caught.value.field == name
    assert caught.value.value == value
    assert caught.value.remedy


@pytest.mark.parametrize(("workload", "command", "settings"), PROCESSES)
@pytest.mark.parametrize("platform", Platform)
def test_a_process_is_told_only_settings_that_it_has(
    platform: Platform, workload: str, command: str, settings: type[CommonSettings]
) -> None:
    (container,) = _workload(platform, workload)["containers"]
    assert container["args"] == [command]
    known = {str(field.validation_alias) for field in settings.model_fields.values()}
    assert {variable["name"] for variable in container["env"]} <= known


@pytest.mark.parametrize(("workload", "command", "settings"), PROCESSES)
def test_probes_ask_the_port_that_is_served(
    workload: str, command: str, settings: type[ControllerSettings | TunnelSettings]
) -> None:
    assert command
    (container,) = _workload(Platform.KUBERNETES, workload)["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == settings.model_fields["health_port"].default
    asked = [container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
    assert [(one["path"], one["port"]) for one in asked] == [("/healthz", "health"), ("/readyz", "health")]


@pytest.mark.parametrize("workload", ["efs-manager", "efs-stunnel"])
@pytest.mark.parametrize("platform", Platform)
def test_long_running_processes_have_no_privilege(platform: Platform, workload: str) -> None:
    pod = _workload(platform, workload)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    # OpenShift gives each namespace its own range of ids, and refuses others.
    assert ("runAsUser" in pod["securityContext"]) == (platform is Platform.KUBERNETES)
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("role", ["kube-efs-controller", "kube-efs-tunnel"])
def test_roles_name_the_objects_that_the_code_uses(role: str) -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.KUBERNETES))
    names = {
        resource: set(rule["resourceNames"])
        for rule in _find(manifests, "Role", role)["rules"]
        for resource in rule["resources"]
        if "resourceNames" in rule
    }
    assert names["configmaps"] == {CONFIG_MAP_NAME}
    assert names.get("leases", {DEFAULT_LEASE}) == {DEFAULT_LEASE}


def test_no_rule_has_a_wildcard() -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.OPENSHIFT))
    rules = [rule for one in manifests if one["kind"] in {"Role", "ClusterRole"} for rule in one["rules"]]
    assert rules
    assert [rule for rule in rules if "*" in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}] == []


def test_the_names_are_those_of_the_older_system() -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.OPENSHIFT))
    # Selectors cannot be changed: these make it possible to apply over an installation that is there.
    for kind, name in (("Deployment", "efs-manager"), ("DaemonSet", "efs-stunnel")):
        workload = _find(manifests, kind, name)
        assert workload["spec"]["selector"] == {"matchLabels": {"component": name}}
        assert workload["spec"]["template"]["metadata"]["labels"]["component"] == name
        assert [one["name"] for one in workload["spec"]["template"]["spec"]["containers"]] == [name]
    accounts = {one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount"}
    assert accounts == {"efs-manager", "efs-stunnel", ControllerSettings().worker_service_account}
    assert dict(LABELS) == {"component": "efs-worker"}


def test_the_storage_class_is_that_of_the_older_system() -> None:
    assert _find(
        render_manifests(RenderOptions(platform=Platform.KUBERNETES)), "StorageClass", "efs-stunnel"
    ) == {
        "kind": "StorageClass",
        "apiVersion": "storage.k8s.io/v1",
        "metadata": {"name": "efs-stunnel"},
        "provisioner": "gnuthought.com/efs-stunnel",
        "parameters": {"default_file_system_id": "auto"},
        "reclaimPolicy": "Delete",
    }


def test_only_openshift_gets_its_own_kinds() -> None:
    kinds = {
        platform: {one["kind"] for one in render_manifests(RenderOptions(platform=platform))}
        for platform in Platform
    }
    assert kinds[Platform.OPENSHIFT] - kinds[Platform.KUBERNETES] == {"SecurityContextConstraints"}


def test_the_image_is_this_version_s_unless_told_otherwise() -> None:
    assert RenderOptions(platform=Platform.KUBERNETES).image == own_image()


def test_json_and_yaml_say_the_same() -> None:
    options = RenderOptions(platform=Platform.OPENSHIFT, region="eu-west-1")
    listing = json.loads(render_text(options, as_json=True))
    assert (listing["apiVersion"], listing["kind"]) == ("v1", "List")
    assert list(yaml.safe_load_all(render_text(options, as_json=False))) == listing["items"]


def test_an_asset_can_be_read_as_it_is() -> None:
    (namespace,) = load_asset("namespace")
    assert namespace["metadata"]["name"] == "{namespace}"
