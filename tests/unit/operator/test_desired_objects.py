"""The desired objects, for the settings of the operator and the facts of the cluster."""

import json
from typing import Any

import pytest

from kube_efs.operator.cluster_csi_driver import LogLevel
from kube_efs.operator.cluster_facts import ClusterFacts, TlsProfile
from kube_efs.operator.desired_objects import (
    ALL_OPTIONAL,
    Component,
    ProcessSettings,
    component_of,
    desired_objects,
    unrequested_objects,
)
from kube_efs.operator.injection import SPEC_HASH
from kube_efs.operator.kinds import KINDS, MANAGED_BY
from kube_efs.operator.manifests import Manifest, RenderOptions, render_manifests
from kube_efs.operator.platforms import Platform
from kube_efs.settings import InstalledSettings


def options(platform: Platform = Platform.OPENSHIFT) -> RenderOptions:
    return RenderOptions(platform=platform, namespace="storage", csi=True)


def desired(
    platform: Platform = Platform.OPENSHIFT,
    processes: ProcessSettings | None = None,
    log_level: LogLevel = LogLevel.NORMAL,
    **facts: Any,
) -> tuple[Manifest, ...]:
    return desired_objects(
        options(platform), ClusterFacts(**facts), processes or ProcessSettings(), log_level
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
    (controller,) = of_component(desired(nodes=nodes), Component.CONTROLLER)
    assert controller["spec"]["replicas"] == replicas


def test_access_points_get_the_ownership_tag_of_the_cluster() -> None:
    (controller,) = of_component(desired(cluster_id="prod-x7k2p"), Component.CONTROLLER)
    assert variables(controller)["KUBE_EFS_ACCESS_POINT_TAGS"] == "kubernetes.io/cluster/prod-x7k2p:owned"


def test_objects_contain_no_secret() -> None:
    assert "aws_secret_access_key" not in json.dumps(
        [one for one in desired() if component_of(one) is Component.STATIC]
    )


def process_settings(**settings: str) -> ProcessSettings:
    return ProcessSettings.from_settings(InstalledSettings(**settings))  # type: ignore[arg-type]  # names of variables


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
    assert names(unrequested_objects(processes, "storage")) == everything - added
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


def test_ownership_tag_is_added_to_the_tags_of_the_administrator() -> None:
    processes = process_settings(KUBE_EFS_CONTROLLER_SETTINGS='{"KUBE_EFS_ACCESS_POINT_TAGS": "team:web"}')
    (controller,) = of_component(desired(processes=processes, cluster_id="prod-x7k2p"), Component.CONTROLLER)
    tags = variables(controller)["KUBE_EFS_ACCESS_POINT_TAGS"]
    assert tags == "team:web kubernetes.io/cluster/prod-x7k2p:owned"
