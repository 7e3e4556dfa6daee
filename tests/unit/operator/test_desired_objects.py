"""The desired objects, for the settings of the operator and the facts of the cluster."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pytest

from kube_efs.model.csi.access_point_tags import Tag, parse_tags
from kube_efs.model.errors import InvalidSetting
from kube_efs.operator.cluster_csi_driver import LogLevel
from kube_efs.operator.cluster_facts import InstallationFacts, NodeCounts, TlsProfile, controller_replicas
from kube_efs.operator.desired_objects import (
    ALL_OPTIONAL,
    LEASE,
    Component,
    ProcessSettings,
    check_settings,
    component_of,
    desired_objects,
    missing_ownership_tag,
    unrequested_objects,
    without_pod_tokens,
)
from kube_efs.operator.injection import SPEC_HASH
from kube_efs.operator.kinds import KINDS, MANAGED_BY
from kube_efs.operator.manifests import Manifest, RenderOptions, render_manifests
from kube_efs.operator.platforms import Platform
from kube_efs.settings.installed import InstalledSettings
from kube_efs.settings.loading import load
from kube_efs.settings.operator import OperatorSettings


def options(platform: Platform = Platform.OPENSHIFT) -> RenderOptions:
    return RenderOptions(platform=platform, namespace="storage", create_namespace=True, csi=True)


def desired(
    platform: Platform = Platform.OPENSHIFT,
    processes: ProcessSettings | None = None,
    log_level: LogLevel = LogLevel.NORMAL,
    volume_metrics: Mapping[str, str] = MappingProxyType({}),
    **facts: Any,
) -> tuple[Manifest, ...]:
    return desired_objects(
        options(platform),
        InstallationFacts(**facts),
        processes or ProcessSettings(),
        log_level,
        volume_metrics,
    )


def of_component(manifests: tuple[Manifest, ...], component: Component) -> Any:
    return [one for one in manifests if component_of(one) is component]


def variables(workload: Manifest) -> dict[str, Any]:
    return {
        one["name"]: one.get("value")
        for one in workload["spec"]["template"]["spec"]["containers"][0].get("env", ())
    }


@pytest.mark.parametrize("platform", Platform)
def test_operator_installs_all_rendered_objects_except_the_namespace(platform: Platform) -> None:
    rendered = {(one["kind"], one["metadata"]["name"]) for one in render_manifests(options(platform))}
    installed = {(one["kind"], one["metadata"]["name"]) for one in desired(platform)}
    assert rendered - installed == {("Namespace", "storage")}


@pytest.mark.parametrize("platform", Platform)
def test_every_object_has_a_removable_kind_and_the_label_of_the_operator(platform: Platform) -> None:
    for one in desired(platform, credentials_mode=""):
        assert one["kind"] in KINDS
        assert MANAGED_BY.items() <= one["metadata"]["labels"].items()


def test_tunnels_are_applied_before_the_node_driver_and_the_controller() -> None:
    components = [component_of(one) for one in desired()]
    assert components[-3:] == [Component.TUNNEL, Component.NODE, Component.CONTROLLER]
    assert all(SPEC_HASH in one["metadata"]["annotations"] for one in desired()[-3:])


@pytest.mark.parametrize(
    ("mode", "role", "is_requested"),
    [
        pytest.param(None, "", False, id="no operator for credentials"),
        pytest.param("", "", True, id="default mode"),
        pytest.param("Manual", "", False, id="manual mode"),
        pytest.param("Manual", "arn:aws:iam::123456789012:role/efs", True, id="manual mode with a role"),
    ],
)
def test_credentials_are_requested_if_the_cluster_creates_them(
    mode: str | None, role: str, is_requested: bool
) -> None:
    requests = of_component(desired(credentials_mode=mode, role_arn=role), Component.CREDENTIALS)
    assert bool(requests) is is_requested
    if requests:
        spec = requests[0]["spec"]
        assert spec["providerSpec"].get("stsIAMRoleARN", "") == role
        assert ("cloudTokenPath" in spec) is bool(role)
        actions = spec["providerSpec"]["statementEntries"][0]["action"]
        assert not [one for one in actions if "*" in one]


def test_all_workloads_get_the_proxy_variables() -> None:
    for one in desired(proxy={"HTTPS_PROXY": "http://proxy:3128"})[-3:]:
        assert variables(one)["HTTPS_PROXY"] == "http://proxy:3128"


def test_metrics_are_served_over_tls_on_openshift_only() -> None:
    for platform in Platform:
        found = desired(platform)
        (service,) = [one for one in found if one["metadata"]["name"].endswith("controller-metrics")]
        (monitor,) = [one for one in found if one["kind"] == "ServiceMonitor"]
        (controller,) = of_component(found, Component.CONTROLLER)
        (endpoint,) = monitor["spec"]["endpoints"]
        container = controller["spec"]["template"]["spec"]["containers"][0]
        (port,) = service["spec"]["ports"]
        assert port["targetPort"] in {one["name"] for one in container["ports"]}
        if platform is Platform.KUBERNETES:
            assert "scheme" not in endpoint
            assert "KUBE_EFS_METRICS_CERTIFICATE_FOLDER" not in variables(controller)
            continue
        (secret,) = service["metadata"]["annotations"].values()
        assert secret == "aws-efs-csi-driver-controller-metrics-serving-cert"
        assert endpoint["scheme"] == "https"
        assert endpoint["tlsConfig"]["serverName"] == "aws-efs-csi-driver-controller-metrics.storage.svc"
        # The process reads the directory at which the Secret is mounted.
        folder = variables(controller)["KUBE_EFS_METRICS_CERTIFICATE_FOLDER"]
        (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == folder]
        volumes = {one["name"]: one for one in controller["spec"]["template"]["spec"]["volumes"]}
        assert volumes[mount["name"]]["secret"] == {"secretName": secret, "optional": True}


def test_controller_serves_metrics_with_the_tls_profile_of_the_cluster() -> None:
    profile = TlsProfile(
        min_version="1.3", ciphers=("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384")
    )
    (controller,) = of_component(desired(tls=profile), Component.CONTROLLER)
    found = variables(controller)
    assert found["KUBE_EFS_METRICS_TLS_VERSION"] == "1.3"
    assert found["KUBE_EFS_METRICS_TLS_CIPHERS"] == "ECDHE-RSA-AES128-GCM-SHA256,ECDHE-RSA-AES256-GCM-SHA384"
    assert "KUBE_EFS_METRICS_TLS_CIPHERS" not in variables(of_component(desired(), Component.CONTROLLER)[0])


def test_new_credentials_change_only_the_controller() -> None:
    before, after = (desired(credentials_version=one) for one in ("1", "2"))
    changed = [component_of(new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [Component.CONTROLLER]


def test_log_level_does_not_change_the_tunnels() -> None:
    before = desired()
    after = desired(log_level=LogLevel.DEBUG)
    changed = [component_of(new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [Component.NODE, Component.CONTROLLER]


@pytest.mark.parametrize(("nodes", "replicas"), [(0, 1), (1, 1), (2, 2), (50, 2)])
def test_controller_has_one_replica_per_node_up_to_two(nodes: int, replicas: int) -> None:
    wanted = controller_replicas(NodeCounts(ready=nodes, existing=nodes), 0)
    (controller,) = of_component(desired(controller_replicas=wanted), Component.CONTROLLER)
    assert controller["spec"]["replicas"] == replicas


@pytest.mark.parametrize(
    ("ready", "existing", "current", "replicas"),
    [
        pytest.param(1, 2, 2, 2, id="one of two nodes is rebooted"),
        pytest.param(1, 2, 1, 1, id="one of two nodes was never ready"),
        pytest.param(1, 1, 2, 1, id="one of two nodes was removed"),
        pytest.param(2, 2, 1, 2, id="a node was added"),
    ],
)
def test_number_of_controllers_does_not_follow_reboots(
    ready: int, existing: int, current: int, replicas: int
) -> None:
    assert controller_replicas(NodeCounts(ready=ready, existing=existing), current) == replicas


def test_tags_of_the_cluster_are_added_to_access_points() -> None:
    many = tuple(Tag(key=f"k{number}", value="v") for number in range(60))
    tags = (
        Tag(key="team", value="storage: a b"),
        Tag(key="bad", value="a%b"),
        Tag(key="mine", value="no"),
        *many,
    )
    processes = ProcessSettings(variables={Component.CONTROLLER: {"KUBE_EFS_ACCESS_POINT_TAGS": "mine:yes"}})
    found = desired(processes=processes, cluster_id="prod", resource_tags=tags)
    text = variables(of_component(found, Component.CONTROLLER)[0])["KUBE_EFS_ACCESS_POINT_TAGS"]
    read = {tag.key: tag.value for tag in parse_tags(text)}  # the controller would not start otherwise
    expected = {"mine": "yes", "kubernetes.io/cluster/prod": "owned", "team": "storage: a b", "k0": "v"}
    assert expected.items() <= read.items()
    assert "bad" not in read


def test_leases_on_openshift_survive_an_api_server_that_is_away_for_a_minute() -> None:
    prefix = "KUBE_EFS_LEASE_"

    def lease(**given: Any) -> dict[str, Any]:
        found = variables(of_component(desired(**given), Component.CONTROLLER)[0])
        return {name.removeprefix(prefix): found[name] for name in found if name.startswith(prefix)}

    assert lease() == {"DURATION_SECONDS": "137", "RENEW_SECONDS": "107", "RETRY_SECONDS": "26"}
    single = lease(has_single_control_plane=True)
    assert single == {"DURATION_SECONDS": "270", "RENEW_SECONDS": "240", "RETRY_SECONDS": "60"}
    assert lease(platform=Platform.KUBERNETES) == {}
    # The controller refuses a duration below the default of another of the three.
    own = {Component.CONTROLLER: {f"{prefix}DURATION_SECONDS": "30"}}
    assert lease(processes=ProcessSettings(variables=own)) == {"DURATION_SECONDS": "30"}


@pytest.mark.parametrize("platform", Platform)
def test_pods_have_the_annotations_of_openshift_and_of_the_autoscaler(platform: Platform) -> None:
    constraints = {
        one["metadata"]["name"]: one["users"]
        for one in desired(platform)
        if one["kind"] == "SecurityContextConstraints"
    }
    for workload in desired(platform)[-3:]:
        template = workload["spec"]["template"]
        annotations = template["metadata"]["annotations"]
        eviction = annotations.get("cluster-autoscaler.kubernetes.io/enable-ds-eviction")
        assert eviction == ("false" if workload["kind"] == "DaemonSet" else None)
        if platform is Platform.KUBERNETES:
            assert not [name for name in annotations if "openshift.io" in name]
            continue
        effect = json.loads(annotations["target.workload.openshift.io/management"])
        assert effect == {"effect": "PreferredDuringScheduling"}
        required = annotations["openshift.io/required-scc"]
        account = f"system:serviceaccount:storage:{template['spec']['serviceAccountName']}"
        assert required == "restricted-v2" or constraints[required] == [account]


def test_volume_metrics_of_the_driver_configuration_are_set_on_the_nodes() -> None:
    before, after = desired(), desired(volume_metrics={"KUBE_EFS_VOLUME_METRICS": "true"})
    changed = [component_of(new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [Component.NODE]
    assert variables(of_component(after, Component.NODE)[0])["KUBE_EFS_VOLUME_METRICS"] == "true"


def test_drains_evict_one_controller_at_a_time() -> None:
    (budget,) = [one for one in desired() if one["kind"] == "PodDisruptionBudget"]
    (controller,) = of_component(desired(), Component.CONTROLLER)
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == controller["spec"]["selector"]


@pytest.mark.parametrize("platform", Platform)
def test_controller_runs_on_the_nodes_that_the_operator_counts(platform: Platform) -> None:
    (controller,) = of_component(desired(platform), Component.CONTROLLER)
    pod = controller["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert not pod.keys() & {"tolerations", "affinity"}


def test_access_points_get_the_ownership_tag_of_the_cluster() -> None:
    (controller,) = of_component(desired(cluster_id="prod-x7k2p"), Component.CONTROLLER)
    assert variables(controller)["KUBE_EFS_ACCESS_POINT_TAGS"] == "kubernetes.io/cluster/prod-x7k2p:owned"


def test_objects_contain_no_secret() -> None:
    assert "aws_secret_access_key" not in json.dumps(
        [one for one in desired() if component_of(one) is Component.STATIC]
    )


def process_settings(**settings: str) -> ProcessSettings:
    return ProcessSettings.from_settings(load(InstalledSettings, settings))


@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize(
    ("settings", "about"),
    [
        pytest.param(
            {"KUBE_EFS_CONTROLLER_SETTINGS": "FILE_SYSTEM_ID: fs-0123456789abcdef0"},
            "KUBE_EFS_CONTROLLER_SETTINGS.*PROVISIONER_NAME must be set",
            id="missing",
        ),
        pytest.param(
            {"KUBE_EFS_CONTROLLER_SETTINGS": "KUBE_EFS_LEASE_DURATION_SECONDS: 5"},
            "KUBE_EFS_LEASE_RENEW_SECONDS",
            id="do not fit together",
        ),
        pytest.param({"KUBE_EFS_KUBELET_FOLDER": "/var/../kubelet"}, "kubelet_folder", id="of the manifests"),
    ],
)
def test_settings_with_which_a_process_would_not_start_are_refused(
    platform: Platform, settings: dict[str, str], about: str
) -> None:
    """Else the pods of the controller would be replaced by some that never start."""
    with pytest.raises(InvalidSetting, match=about):
        check_settings(load(OperatorSettings, settings), platform)


@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize("csi_only", ["true", "false"])
def test_settings_with_which_all_processes_start_are_accepted(platform: Platform, csi_only: str) -> None:
    given = {
        "KUBE_EFS_CSI_ONLY": csi_only,
        "AWS_REGION": "eu-west-1",
        "AWS_USE_FIPS_ENDPOINT": "true",
        "KUBE_EFS_CONTROLLER_SETTINGS": '{"FILE_SYSTEM_ID": "fs-0123abcd", "PROVISIONER_NAME": "a/b"}',
        "KUBE_EFS_NODE_SETTINGS": '{"KUBE_EFS_HEALTH_HOST": "0.0.0.0"}',
    }
    check_settings(load(OperatorSettings, given), platform)


def names(manifests: tuple[Manifest, ...]) -> set[str]:
    return {f"{one['kind']} {one['metadata']['name']}" for one in manifests}


@pytest.mark.parametrize(
    ("settings", "added"),
    [
        pytest.param({}, set(), id="nothing"),
        pytest.param(
            {"KUBE_EFS_CONTROLLER_SETTINGS": '{"KUBE_EFS_USAGE_INTERVAL_SECONDS": 21600}'},
            {
                "Role kube-efs-observing",
                "RoleBinding kube-efs-observing",
                "ClusterRole kube-efs-observing",
                "ClusterRoleBinding kube-efs-observing:storage",
            },
            id="usage",
        ),
        pytest.param(
            {"KUBE_EFS_CONTROLLER_SETTINGS": '{"KUBE_EFS_STATUS_PAGE": "yes"}'},
            {
                "Role kube-efs-observing",
                "RoleBinding kube-efs-observing",
                "ClusterRole kube-efs-observing",
                "ClusterRoleBinding kube-efs-observing:storage",
            },
            id="status page",
        ),
        pytest.param(
            {
                "KUBE_EFS_CONTROLLER_SETTINGS": '{"KUBE_EFS_STATUS_PAGE": false}',
                "KUBE_EFS_TUNNEL_SETTINGS": '{"KUBE_EFS_HEALTH_HOST": "127.0.0.1"}',
            },
            set(),
            id="switched off",
        ),
        pytest.param(
            {"KUBE_EFS_TUNNEL_SETTINGS": "KUBE_EFS_HEALTH_HOST: 0.0.0.0"},
            {"PodMonitor kube-efs-tunnel"},
            id="metrics of tunnels",
        ),
        pytest.param(
            {"KUBE_EFS_NODE_SETTINGS": '{"KUBE_EFS_HEALTH_HOST": "0.0.0.0"}'},
            {"PodMonitor kube-efs-node"},
            id="metrics of the driver",
        ),
    ],
)
def test_settings_add_the_objects_that_they_require(settings: dict[str, str], added: set[str]) -> None:
    processes = process_settings(**settings)
    assert names(desired(processes=processes)) - names(desired()) == added
    everything = names(desired(processes=ALL_OPTIONAL)) - names(desired())
    assert names(unrequested_objects(processes, options())) == everything - added
    for one in desired(processes=processes):
        assert MANAGED_BY.items() <= one["metadata"]["labels"].items()


def test_variables_are_set_only_on_their_process_and_replace_existing_ones() -> None:
    processes = process_settings(
        KUBE_EFS_CONTROLLER_SETTINGS='{"EFS_POLLING_INTERVAL": 60, "KUBE_EFS_SHARED_VOLUMES": false}',
        KUBE_EFS_TUNNEL_SETTINGS='{"KUBE_EFS_HEALTH_HOST": "0.0.0.0", "LOGGING_LEVEL": "DEBUG"}',
        KUBE_EFS_NODE_SETTINGS='{"KUBE_EFS_VOLUME_METRICS": true}',
    )
    before, after = desired()[-3:], desired(processes=processes)[-3:]
    changed = [
        dict(variables(new).items() - variables(old).items()) for old, new in zip(before, after, strict=True)
    ]
    assert changed == [
        {"KUBE_EFS_HEALTH_HOST": "0.0.0.0", "LOGGING_LEVEL": "DEBUG"},
        {"KUBE_EFS_VOLUME_METRICS": "true"},
        {"EFS_POLLING_INTERVAL": "60", "KUBE_EFS_SHARED_VOLUMES": "false"},
    ]
    for one in after:
        given = [each["name"] for each in one["spec"]["template"]["spec"]["containers"][0]["env"]]
        assert len(given) == len(set(given))


@pytest.mark.parametrize("platform", Platform)
def test_settings_that_the_cluster_overrides_are_refused_or_documented(platform: Platform) -> None:
    proxy = {"HTTP_PROXY": "a", "HTTPS_PROXY": "b", "NO_PROXY": "c"}
    facts: dict[str, Any] = {
        "proxy": proxy,
        "trusted_ca_version": "1",
        "credentials_version": "1",
        "cluster_id": "prod",
        "tls": TlsProfile(ciphers=("ECDHE-RSA-AES128-GCM-SHA256",)),
    }
    (controller,) = of_component(desired(platform, **facts), Component.CONTROLLER)
    (rendered,) = of_component(render_manifests(options(platform)), Component.CONTROLLER)
    accepted = set()
    for name in variables(controller).keys() - variables(rendered).keys():
        text = variables(controller)[name] or "a"
        with suppress(InvalidSetting):
            load(OperatorSettings, {"KUBE_EFS_CONTROLLER_SETTINGS": json.dumps({name: text})})
            accepted.add(name)
    # docs/operator.md has each of them, with the value that wins.
    assert accepted == {
        "AWS_CA_BUNDLE",
        "KUBE_EFS_ACCESS_POINT_TAGS",
        *proxy,
        *(LEASE.variables if platform is Platform.OPENSHIFT else ()),
    }
    given = process_settings(KUBE_EFS_CONTROLLER_SETTINGS=json.dumps(dict.fromkeys(proxy, "x")))
    (controller,) = of_component(desired(platform, processes=given, **facts), Component.CONTROLLER)
    assert proxy.items() <= variables(controller).items()
    names = [one["name"] for one in controller["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("own", "cluster_id", "is_missing"),
    [
        pytest.param(44, "prod", False, id="room for one"),
        pytest.param(45, "prod", True, id="no room"),
        pytest.param(1, "prod%1", True, id="not valid"),
        pytest.param(45, "", False, id="no cluster ID"),
    ],
)
def test_controller_starts_with_the_tags_also_without_room_for_the_ownership_tag(
    own: int, cluster_id: str, is_missing: bool
) -> None:
    of_settings = " ".join(f"k{number}:v" for number in range(own))
    processes = ProcessSettings(variables={Component.CONTROLLER: {"KUBE_EFS_ACCESS_POINT_TAGS": of_settings}})
    facts = InstallationFacts(cluster_id=cluster_id)
    (controller,) = of_component(desired(processes=processes, cluster_id=cluster_id), Component.CONTROLLER)
    keys = {tag.key for tag in parse_tags(variables(controller)["KUBE_EFS_ACCESS_POINT_TAGS"])}
    assert {f"k{number}" for number in range(own)} <= keys
    owned = f"kubernetes.io/cluster/{cluster_id}"
    assert (owned in keys) is (bool(cluster_id) and not is_missing)
    assert (owned in missing_ownership_tag(facts, processes)) is is_missing


def test_ownership_tag_is_added_to_the_tags_of_the_administrator() -> None:
    processes = process_settings(KUBE_EFS_CONTROLLER_SETTINGS='{"KUBE_EFS_ACCESS_POINT_TAGS": "team:web"}')
    (controller,) = of_component(desired(processes=processes, cluster_id="prod-x7k2p"), Component.CONTROLLER)
    tags = variables(controller)["KUBE_EFS_ACCESS_POINT_TAGS"]
    assert tags == "team:web kubernetes.io/cluster/prod-x7k2p:owned"


# What OpenShift itself grants to every service account.
_RESTRICTED: Final = {
    "allowHostNetwork": False,
    "allowHostPorts": False,
    "allowPrivilegedContainer": False,
    "allowedCapabilities": ["NET_BIND_SERVICE"],
    "volumes": [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ],
}


def obstacles(pod: Any, constraints: Any) -> set[str]:
    """What a SecurityContextConstraints does not allow in a pod."""
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    contexts = [one.get("securityContext", {}) for one in containers]
    volumes = {kind for volume in pod.get("volumes", ()) for kind in volume if kind != "name"}
    wanted = {f"volume {kind}" for kind in volumes - {*constraints["volumes"]}}
    if pod.get("hostNetwork") and not constraints["allowHostNetwork"]:
        wanted.add("hostNetwork")
    if any(context.get("privileged") for context in contexts) and not constraints["allowPrivilegedContainer"]:
        wanted.add("privileged")
    added = {name for context in contexts for name in context.get("capabilities", {}).get("add", ())}
    wanted |= {f"capability {name}" for name in added - {*constraints["allowedCapabilities"]}}
    return wanted


@pytest.mark.parametrize("csi", [True, False])
def test_security_context_constraints_allow_the_pods_with_every_optional_part(csi: bool) -> None:
    facts = InstallationFacts(
        proxy={"HTTPS_PROXY": "http://proxy:3128"},
        trusted_ca_version="1",
        credentials_version="1",
        credentials_mode="",
    )
    rendered = RenderOptions(platform=Platform.OPENSHIFT, namespace="storage", csi=csi)
    found = desired_objects(rendered, facts, ALL_OPTIONAL, LogLevel.DEBUG)
    workloads = [one for one in found if one["kind"] in {"DaemonSet", "Deployment"}]
    assert len(workloads) == (3 if csi else 2)
    for workload in workloads:
        pod = workload["spec"]["template"]["spec"]
        user = f"system:serviceaccount:storage:{pod['serviceAccountName']}"
        granted = [
            one for one in found if one["kind"] == "SecurityContextConstraints" and user in one["users"]
        ]
        refused = [obstacles(pod, one) for one in (*granted, _RESTRICTED)]
        assert set() in refused, (workload["metadata"]["name"], refused)


def test_storage_class_is_removed_if_only_the_driver_is_requested() -> None:
    only = replace(options(), csi_only=True)
    gone = {f"StorageClass {only.storage_class_name}"}
    assert gone <= names(unrequested_objects(ProcessSettings(), only))
    assert names(desired()) - names(desired_objects(only, InstallationFacts(), ProcessSettings())) == gone


def test_csidriver_requests_no_tokens_while_pods_of_an_older_driver_run() -> None:
    """The AWS driver refuses every volume attribute that it does not know, also tokens."""
    before = desired()
    [changed] = [one for one in zip(before, without_pod_tokens(before), strict=True) if one[0] != one[1]]
    driver, without = changed
    assert driver["kind"] == "CSIDriver"
    removed = {"tokenRequests", "requiresRepublish"}
    assert without == {
        **driver,
        "spec": {name: value for name, value in driver["spec"].items() if name not in removed},
    }
    assert removed <= driver["spec"].keys()
