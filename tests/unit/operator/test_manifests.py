import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from kube_efs.csi.startup_taint import STARTUP_TAINT
from kube_efs.model.errors import InvalidSetting
from kube_efs.model.names import NEW_INSTALLATION, WORKER_LABELS, NameSet
from kube_efs.model.volumes import DRIVER
from kube_efs.operator.manifests import Manifest, RenderOptions, load_asset, render_manifests, text_of
from kube_efs.operator.operator_manifests import render_operator
from kube_efs.operator.platforms import Platform
from kube_efs.settings.base import CommonSettings, own_image
from kube_efs.settings.controller import DEFAULT_LEASE, ControllerSettings
from kube_efs.settings.fields import variables
from kube_efs.settings.loading import load
from kube_efs.settings.node import NodeSettings
from kube_efs.settings.tunnel import TunnelSettings

NAMES = NEW_INSTALLATION.names
IMAGE = "registry.example.com/kube-efs:1.2.3"
_AUTOSCALER = "cluster-autoscaler.kubernetes.io"
PROCESSES = [
    pytest.param(NAMES.controller, "controller", ControllerSettings, id="controller"),
    pytest.param(NAMES.tunnel, "tunnel", TunnelSettings, id="tunnel"),
    pytest.param(NAMES.node, "node", NodeSettings, id="node"),
]


def _find(manifests: tuple[Manifest, ...], kind: str, name: str) -> Manifest:
    (found,) = [one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def _workload(platform: Platform, name: str, *, csi: bool = True) -> Any:
    kind = "Deployment" if name == NAMES.controller else "DaemonSet"
    manifests = render_manifests(RenderOptions(platform=platform, csi=csi))
    return _find(manifests, kind, name)["spec"]["template"]["spec"]


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
@pytest.mark.parametrize("region", [None, "eu-west-1"])
@pytest.mark.parametrize("csi", [False, True], ids=["without", "csi"])
def test_every_placeholder_is_replaced(platform: Platform, region: str | None, csi: bool) -> None:
    secrets = ("team/role",) if csi else ()
    manifests = render_manifests(RenderOptions(platform=platform, region=region, csi=csi, secrets=secrets))
    # The patterns of a definition are the only texts that have such characters for good.
    texts = [text for text in _strings(list(manifests)) if not text.startswith("^")]
    assert [text for text in texts if re.search(r"[{}$]|\bNone\b", text)] == ["None"] * csi


def test_every_option_is_in_the_objects() -> None:
    options = RenderOptions(
        platform=Platform.OPENSHIFT,
        namespace="storage",
        image=IMAGE,
        provisioner="example.com/efs",
        storage_class_name="fast",
        region="eu-west-1",
        create_namespace=True,
    )
    manifests = render_manifests(options)
    namespaces = {one["metadata"].get("namespace", "storage") for one in manifests}
    assert namespaces == {"storage"}
    assert _find(manifests, "Namespace", "storage")
    assert _find(manifests, "StorageClass", "fast")["provisioner"] == "example.com/efs"
    constraints = _find(manifests, "SecurityContextConstraints", f"{NAMES.tunnel}-worker")
    assert constraints["users"] == [f"system:serviceaccount:storage:{NAMES.worker_account}"]
    subjects = _find(manifests, "ClusterRoleBinding", "kube-efs-controller:storage")["subjects"]
    assert subjects == [{"kind": "ServiceAccount", "name": NAMES.controller_account, "namespace": "storage"}]
    (container,) = _find(manifests, "Deployment", NAMES.controller)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == IMAGE
    values = {one["name"]: one.get("value") for one in container["env"]}
    assert values["STORAGE_PROVISIONER_NAME"] == "example.com/efs"
    assert values["WORKER_IMAGE"] == IMAGE
    assert values["AWS_REGION"] == "eu-west-1"


@pytest.mark.parametrize("fips", [False, True])
def test_fips_endpoints_are_those_of_processes_that_call_aws(fips: bool) -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.KUBERNETES, csi=True, fips=fips))
    pods = [
        one["spec"]["template"]["spec"] for one in manifests if one["kind"] in {"Deployment", "DaemonSet"}
    ]
    found = {
        container["args"][0]: {one["name"]: one.get("value") for one in container["env"]}
        for pod in pods
        for container in pod["containers"]
    }
    given = {command: values.get("AWS_USE_FIPS_ENDPOINT") for command, values in found.items()}
    expected = "true" if fips else None
    assert given == {"controller": expected, "tunnel": expected, "node": None}


def test_value_with_yaml_syntax_is_rejected() -> None:
    with pytest.raises(InvalidSetting, match=r"^image: 'a\\nb: c' is not valid; use an image's name"):
        RenderOptions(platform=Platform.KUBERNETES, image="a\nb: c")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("namespace", "Storage", id="upper case"),
        pytest.param("namespace", "a.b", id="namespace with a dot"),
        pytest.param("namespace", "", id="nothing"),
        pytest.param("namespace", "a" * 64, id="64 characters"),
        pytest.param("image", "-rm", id="image that looks like a flag"),
        pytest.param("provisioner", "a/b/c", id="two slashes"),
        pytest.param("storage_class_name", "_", id="underscore"),
        pytest.param("region", "us east", id="blank"),
        pytest.param("kubelet_folder", "var/lib/kubelet", id="relative directory"),
        pytest.param("kubelet_folder", "/var/../etc", id="directory with dots"),
        pytest.param("kubelet_folder", "/", id="root"),
    ],
)
def test_invalid_option_is_rejected_with_its_name_and_value(name: str, value: str) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(InvalidSetting) as caught:
        RenderOptions(platform=Platform.KUBERNETES, **options)
    assert caught.value.field == name
    assert caught.value.value == value
    assert caught.value.remedy


@pytest.mark.parametrize(("workload", "command", "settings"), PROCESSES)
@pytest.mark.parametrize("platform", Platform)
def test_process_gets_only_variables_of_its_settings(
    platform: Platform, workload: str, command: str, settings: type[CommonSettings]
) -> None:
    (container,) = _workload(platform, workload)["containers"]
    assert container["args"] == [command]
    known = {one.name for one in variables(settings).values()}
    assert {variable["name"] for variable in container["env"]} <= known
    assert load(settings, _environment(container))


@pytest.mark.parametrize(("workload", "command", "settings"), PROCESSES)
def test_probes_use_the_health_port(
    workload: str, command: str, settings: type[ControllerSettings | TunnelSettings]
) -> None:
    assert command
    (container,) = _workload(Platform.KUBERNETES, workload)["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == load(settings, {}).health_port
    probes = [container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
    assert [(one["path"], one["port"]) for one in probes] == [("/healthz", "health"), ("/readyz", "health")]


@pytest.mark.parametrize("workload", [NAMES.controller, NAMES.tunnel, NAMES.node])
@pytest.mark.parametrize("platform", Platform)
def test_variables_of_services_are_no_settings(platform: Platform, workload: str) -> None:
    """A Service ``kube-efs-metrics`` would otherwise give each pod an invalid ``KUBE_EFS_METRICS_PORT``."""
    assert _workload(platform, workload)["enableServiceLinks"] is False


@pytest.mark.parametrize("platform", Platform)
def test_autoscaler_may_remove_the_nodes_of_deployments(platform: Platform) -> None:
    """It keeps nodes with pods that have local storage, except volumes that this annotation names."""
    options = RenderOptions(platform=platform, csi=True)
    deployments = [
        one for one in (*render_manifests(options), *render_operator(options)) if one["kind"] == "Deployment"
    ]
    assert len(deployments) == 2
    for one in deployments:
        template = one["spec"]["template"]
        local = [volume["name"] for volume in template["spec"]["volumes"] if "emptyDir" in volume]
        named = template["metadata"]["annotations"][f"{_AUTOSCALER}/safe-to-evict-local-volumes"]
        assert named.split(",") == local


@pytest.mark.parametrize("platform", Platform)
def test_autoscaler_does_not_evict_the_pods_of_nodes(platform: Platform) -> None:
    """The pods with volumes end at the same time, and still need the tunnels and the driver."""
    manifests = render_manifests(RenderOptions(platform=platform, csi=True))
    templates = [one["spec"]["template"] for one in manifests if one["kind"] == "DaemonSet"]
    assert len(templates) == 2
    for one in templates:
        assert one["metadata"]["annotations"][f"{_AUTOSCALER}/enable-ds-eviction"] == "false"


@pytest.mark.parametrize(("workload", "command", "settings"), PROCESSES)
def test_process_has_five_minutes_to_start(workload: str, command: str, settings: type[object]) -> None:
    """Otherwise the liveness probe would kill the processes of a busy node in a loop."""
    assert command
    assert settings
    (container,) = _workload(Platform.KUBERNETES, workload)["containers"]
    starting = container["startupProbe"]
    assert starting["httpGet"] == container["livenessProbe"]["httpGet"]
    assert starting["periodSeconds"] * starting["failureThreshold"] == 300


@pytest.mark.parametrize("platform", Platform)
def test_slow_tunnel_agent_is_not_restarted_for_five_minutes(platform: Platform) -> None:
    """A restart of its container ends the data planes, and with them all connections of the node's mounts."""
    [container] = _workload(platform, NAMES.tunnel)["containers"]
    probe = container["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 300
    assert probe["timeoutSeconds"] >= 30


@pytest.mark.parametrize("csi", [False, True], ids=["without", "csi"])
@pytest.mark.parametrize("workload", [NAMES.controller, NAMES.tunnel], ids=["controller", "tunnel"])
@pytest.mark.parametrize("platform", Platform)
def test_controller_and_tunnels_run_without_privileges(platform: Platform, workload: str, csi: bool) -> None:
    pod = _workload(platform, workload, csi=csi)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    # OpenShift gives each namespace its own range of ids; but a directory of the node has one owner.
    keeps_folder = csi and workload == NAMES.tunnel
    assert ("runAsUser" in pod["securityContext"]) == (platform is Platform.KUBERNETES or keeps_folder)
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("role", ["kube-efs-controller", "kube-efs-tunnel"])
def test_roles_are_limited_to_the_objects_in_use(role: str) -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.KUBERNETES))
    names: dict[str, set[str]] = {}
    for rule in _find(manifests, "Role", role)["rules"]:
        for resource in rule["resources"] if "resourceNames" in rule else ():
            names.setdefault(resource, set()).update(rule["resourceNames"])
    # The controller takes the ports of an installation with the oldest names that it replaces.
    older = {NAMES.older_config_map} if role == "kube-efs-controller" else set()
    assert names["configmaps"] == {NAMES.config_map, *older}
    assert names.get("leases", {DEFAULT_LEASE}) == {DEFAULT_LEASE}


def test_no_rule_has_a_wildcard() -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.OPENSHIFT, csi=True))
    rules = [rule for one in manifests if one["kind"] in {"Role", "ClusterRole"} for rule in one["rules"]]
    assert rules
    assert [rule for rule in rules if "*" in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}] == []


def test_names_and_selectors_are_those_of_openshift_efs_stunnel() -> None:
    options = RenderOptions(platform=Platform.OPENSHIFT, names=NameSet.OPENSHIFT_EFS_STUNNEL)
    manifests = render_manifests(options)
    # Selectors cannot be changed: these make it possible to apply over an installation that is there.
    for kind, name in (("Deployment", "efs-manager"), ("DaemonSet", "efs-stunnel")):
        workload = _find(manifests, kind, name)
        assert workload["spec"]["selector"] == {"matchLabels": {"component": name}}
        assert workload["spec"]["template"]["metadata"]["labels"]["component"] == name
        assert [one["name"] for one in workload["spec"]["template"]["spec"]["containers"]] == [name]
    accounts = {one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount"}
    assert accounts == {"efs-manager", "efs-stunnel", ControllerSettings().names.worker_account}
    assert dict(WORKER_LABELS) == {"component": "efs-worker"}


@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize("name_set", NameSet)
def test_every_object_has_the_names_of_the_set(name_set: NameSet, platform: Platform) -> None:
    names = name_set.names
    manifests = render_manifests(RenderOptions(platform=platform, names=name_set, csi=True))
    of_kind = {
        kind: [one for one in manifests if one["kind"] == kind]
        for kind in ("Deployment", "DaemonSet", "ServiceAccount", "StorageClass")
    }
    found = {kind: {one["metadata"]["name"] for one in of_kind[kind]} for kind in of_kind}
    accounts = {names.controller_account, names.tunnel_account, names.node_account, names.worker_account}
    assert found == {
        "Deployment": {names.controller},
        "DaemonSet": {names.tunnel, names.node},
        "ServiceAccount": accounts,
        "StorageClass": {names.storage_class},
    }
    subjects = {one["name"] for each in manifests for one in each.get("subjects", ())}
    assert subjects == accounts - {names.worker_account}
    for one in (*of_kind["Deployment"], *of_kind["DaemonSet"]):
        template, name = one["spec"]["template"], one["metadata"]["name"]
        assert one["spec"]["selector"] == {"matchLabels": {"component": name}}
        assert template["metadata"]["labels"]["component"] == name
        assert template["spec"]["serviceAccountName"] in accounts
        (container,) = template["spec"]["containers"]
        assert container["name"] == name
        assert {"name": "KUBE_EFS_NAMES", "value": str(name_set)} in container["env"]
    assert {one["metadata"].get("namespace", names.namespace) for one in manifests} == {names.namespace}


@pytest.mark.parametrize("name_set", NameSet)
def test_lease_provisioner_and_driver_do_not_depend_on_the_names(name_set: NameSet) -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.KUBERNETES, names=name_set, csi=True))
    (lease,) = (
        rule["resourceNames"]
        for rule in _find(manifests, "Role", "kube-efs-controller")["rules"]
        if rule["resources"] == ["leases"] and "resourceNames" in rule
    )
    assert lease == [DEFAULT_LEASE]
    (storage_class,) = (one for one in manifests if one["kind"] == "StorageClass")
    assert storage_class["provisioner"] == "gnuthought.com/efs-stunnel"
    assert _find(manifests, "CSIDriver", "efs.csi.aws.com")


def test_namespace_of_kubernetes_is_not_among_the_manifests() -> None:
    options = RenderOptions(platform=Platform.KUBERNETES, names=NameSet.AWS_EFS_CSI_DRIVER)
    assert options.namespace == "kube-system"
    # `kubectl delete` of the manifests would try to delete it.
    found = (*render_manifests(options), *render_operator(replace(options, csi=True)))
    assert [one for one in found if one["kind"] == "Namespace"] == []


def test_storage_class_is_that_of_openshift_efs_stunnel() -> None:
    options = RenderOptions(platform=Platform.KUBERNETES, names=NameSet.OPENSHIFT_EFS_STUNNEL)
    assert _find(render_manifests(options), "StorageClass", "efs-stunnel") == {
        "kind": "StorageClass",
        "apiVersion": "storage.k8s.io/v1",
        "metadata": {"name": "efs-stunnel"},
        "provisioner": "gnuthought.com/efs-stunnel",
        "parameters": {"default_file_system_id": "auto"},
        "reclaimPolicy": "Delete",
    }


def test_kinds_of_openshift_are_rendered_for_openshift_only() -> None:
    kinds = {
        platform: {one["kind"] for one in render_manifests(RenderOptions(platform=platform, csi=True))}
        for platform in Platform
    }
    assert kinds[Platform.OPENSHIFT] - kinds[Platform.KUBERNETES] == {"SecurityContextConstraints"}


def test_default_image_has_the_version_of_the_package() -> None:
    assert RenderOptions(platform=Platform.KUBERNETES).image == own_image()


def test_json_and_yaml_contain_the_same_objects() -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.OPENSHIFT, region="eu-west-1"))
    listing = json.loads(text_of(manifests, as_json=True))
    assert (listing["apiVersion"], listing["kind"]) == ("v1", "List")
    assert list(yaml.safe_load_all(text_of(manifests, as_json=False))) == listing["items"]


def test_asset_is_loaded_with_its_placeholders() -> None:
    (namespace,) = load_asset("namespace")
    assert namespace["metadata"]["name"] == "{namespace}"


# --- the CSI driver


def _mounted(pod: Any, container: Any) -> dict[str, str]:
    """The host paths of a container, by mount path."""
    folders = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    return {
        one["mountPath"]: folders[one["name"]] for one in container["volumeMounts"] if one["name"] in folders
    }


def _environment(container: Any) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def test_installation_without_csi_contains_nothing_of_the_driver() -> None:
    text = text_of(render_manifests(RenderOptions(platform=Platform.OPENSHIFT)), as_json=False)
    for word in (DRIVER, "efs-csi", "hostPath", "initContainers", "KUBE_EFS_TUNNEL_SOCKET", "spc_t"):
        assert word not in text


@pytest.mark.parametrize("platform", Platform)
def test_tunnels_may_use_directories_of_nodes_with_selinux(platform: Platform) -> None:
    """Also without OpenShift, such as nodes of RKE2 or kubeadm on Red Hat Enterprise Linux."""
    pod = _workload(platform, NAMES.tunnel)
    folders, agent = pod["initContainers"][0], pod["containers"][0]
    assert _mounted(pod, folders)
    assert _mounted(pod, agent)
    assert pod["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


def test_csidriver_has_the_fields_of_the_aws_driver() -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.KUBERNETES, csi=True))
    spec = _find(manifests, "CSIDriver", DRIVER)["spec"]
    assert spec["attachRequired"] is False
    assert spec["podInfoOnMount"] is False


def test_csidriver_requests_tokens_of_pods_again_and_again() -> None:
    manifests = render_manifests(RenderOptions(platform=Platform.KUBERNETES, csi=True))
    spec = _find(manifests, "CSIDriver", DRIVER)["spec"]
    assert [one["audience"] for one in spec["tokenRequests"]] == [
        "sts.amazonaws.com",
        "pods.eks.amazonaws.com",
    ]
    assert spec["requiresRepublish"] is True


def test_controller_also_serves_claims_of_the_csi_driver() -> None:
    (container,) = _workload(Platform.KUBERNETES, NAMES.controller)["containers"]
    settings = load(ControllerSettings, _environment(container))
    assert set(settings.backends) == {"tunnel", "directory", "csi"}
    assert settings.csi_endpoint is None


def test_node_driver_and_tunnel_agent_use_the_same_socket() -> None:
    pods = {name: _workload(Platform.KUBERNETES, name) for name in (NAMES.tunnel, NAMES.node)}
    sockets, folders = set(), set()
    for pod in pods.values():
        (container,) = pod["containers"]
        socket = PurePosixPath(_environment(container)["KUBE_EFS_TUNNEL_SOCKET"])
        sockets.add(socket)
        folders.add(_mounted(pod, container)[str(socket.parent)])
        assert pod["hostNetwork"] is True
    assert (len(sockets), len(folders)) == (1, 1)


def test_tunnel_state_is_stored_on_the_node() -> None:
    pod = _workload(Platform.KUBERNETES, NAMES.tunnel)
    (container,), (init,) = pod["containers"], pod["initContainers"]
    state = _environment(container)["KUBE_EFS_STATE_DIR"]
    assert state in _mounted(pod, container)
    # All directories of the node are given to the user that the agent runs as.
    assert _mounted(pod, init) == _mounted(pod, container)
    owner = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert init["command"] == ["chown", owner, *_mounted(pod, init)]
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}


@pytest.mark.parametrize("kubelet", ["/var/lib/kubelet", "/var/lib/k0s/kubelet"])
def test_node_driver_uses_the_directories_of_the_kubelet(kubelet: str) -> None:
    options = RenderOptions(platform=Platform.KUBERNETES, csi=True, kubelet_folder=kubelet)
    pod = _find(render_manifests(options), "DaemonSet", NAMES.node)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment, mounted = _environment(container), _mounted(pod, container)
    # The kubelet must see what is mounted, so paths there and here are the same.
    assert mounted[f"{kubelet}/pods"] == f"{kubelet}/pods"
    propagated = [one for one in container["volumeMounts"] if "mountPropagation" in one]
    assert [(one["mountPath"], one["mountPropagation"]) for one in propagated] == [
        (f"{kubelet}/pods", "Bidirectional")
    ]
    assert mounted[environment["KUBE_EFS_REGISTRATION_FOLDER"]] == f"{kubelet}/plugins_registry"
    socket = PurePosixPath(environment["CSI_ENDPOINT"].removeprefix("unix://"))
    assert f"{mounted[str(socket.parent)]}/{socket.name}" == environment["DRIVER_REG_SOCK_PATH"]


@pytest.mark.parametrize("daemon_set", [NAMES.node, NAMES.tunnel], ids=["node", "tunnel"])
def test_daemon_sets_tolerate_all_taints_and_avoid_unsupported_nodes(daemon_set: str) -> None:
    pod = _workload(Platform.KUBERNETES, daemon_set)
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux"}
    # The startup taint among them.
    assert pod["tolerations"] == [{"operator": "Exists"}], STARTUP_TAINT
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    (expression,) = term["matchExpressions"]
    assert (expression["operator"], expression["values"]) == ("NotIn", ["fargate", "hybrid"])


def test_health_ports_on_a_node_differ() -> None:
    ports = [
        port["containerPort"]
        for name in (NAMES.tunnel, NAMES.node)
        for container in _workload(Platform.KUBERNETES, name)["containers"]
        for port in container["ports"]
    ]
    assert len(set(ports)) == len(ports) == 2


def test_controller_can_read_only_the_given_secrets_and_config_maps() -> None:
    options = RenderOptions(
        platform=Platform.KUBERNETES,
        csi=True,
        secrets=("team/role", "team/role", "other/x-account"),
        config_maps=("team/ids",),
    )
    name = f"kube-efs-class-references:{options.namespace}"
    found = [
        one for one in render_manifests(options) if one["kind"] == "Role" and one["metadata"]["name"] == name
    ]
    rules = {
        (role["metadata"]["namespace"], *rule["resources"]): (rule["resourceNames"], rule["verbs"])
        for role in found
        for rule in role["rules"]
    }
    assert rules == {
        ("team", "secrets"): (["role"], ["get"]),
        ("team", "configmaps"): (["ids"], ["get"]),
        ("other", "secrets"): (["x-account"], ["get"]),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"secrets": ("role",)}, "'role' of --secret is not valid; use NAMESPACE/NAME", id="no namespace"
        ),
        pytest.param(
            {"config_maps": ("a/b/c",)},
            "'a/b/c' of --config-map is not valid; use NAMESPACE/NAME",
            id="key too",
        ),
        pytest.param(
            {"secrets": ("a/*",)}, "'a/*' of --secret is not valid; use NAMESPACE/NAME", id="every name"
        ),
        pytest.param(
            {"secrets": ("a/b",), "csi": False},
            "'a/b' of --secret is for the CSI driver only; leave it out, or add the CSI driver",
            id="no driver",
        ),
    ],
)
def test_invalid_reference_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        RenderOptions(platform=Platform.KUBERNETES, **{"csi": True, **changes})
    assert str(caught.value) == message


@pytest.mark.parametrize("platform", Platform)
def test_shared_volumes_are_installed_with_the_csi_driver_only(platform: Platform) -> None:
    name = "sharedvolumes.aws-efs.managed.openshift.io"
    without = render_manifests(RenderOptions(platform=platform))
    manifests = render_manifests(RenderOptions(platform=platform, csi=True))
    assert "CustomResourceDefinition" not in {one["kind"] for one in without}
    (version,) = _find(manifests, "CustomResourceDefinition", name)["spec"]["versions"]
    shown = [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")]
    assert shown == ["File System", "Access Point", "Phase", "Claim", "Message"]
    (container,) = _find(manifests, "Deployment", NAMES.controller)["spec"]["template"]["spec"]["containers"]
    assert {"name": "KUBE_EFS_SHARED_VOLUMES", "value": "true"} in container["env"]
