"""Settings: valid values, and the texts of refusals."""

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from kube_efs.model.errors import InvalidSetting
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.model.shared_volumes.limits import Allowance, Limits
from kube_efs.settings.base import CommonSettings
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.directories import BackendName
from kube_efs.settings.fields import variables
from kube_efs.settings.loading import load
from kube_efs.settings.node import NodeSettings
from kube_efs.settings.operator import OperatorSettings
from kube_efs.settings.tunnel import TunnelSettings

_ALL = {
    one.name
    for kind in (ControllerSettings, TunnelSettings, NodeSettings, OperatorSettings)
    for one in variables(kind).values()
}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _ALL:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", [ControllerSettings, TunnelSettings, NodeSettings, OperatorSettings])
def test_process_of_earlier_manifests_keeps_its_names(kind: type[CommonSettings]) -> None:
    # They do not set KUBE_EFS_NAMES. New installations have other names, and set it.
    assert load(kind).names == OPENSHIFT_EFS_STUNNEL


def test_defaults_match_the_older_system() -> None:
    controller, tunnel = load(ControllerSettings), load(TunnelSettings)
    assert controller.base_stunnel_port == 20490
    assert controller.polling_interval_seconds == 300
    assert controller.provision_backoff_seconds == 60
    assert controller.provisioner_name == "gnuthought.com/efs-stunnel"
    assert controller.namespace == "openshift-efs-stunnel"
    assert controller.logging_level == tunnel.logging_level == "INFO"
    assert tunnel.stunnel_conf_path == Path("/tmp/stunnel.conf")
    assert tunnel.stunnel_path is None


def test_workers_use_the_image_of_this_version() -> None:
    image = load(ControllerSettings).worker_image
    assert image.startswith("quay.io/kube-efs/kube-efs:")
    assert image.rpartition(":")[2][0].isdigit()


def test_each_process_has_its_own_health_port() -> None:
    # All may run on one node's network.
    controller, tunnel, node = load(ControllerSettings), load(TunnelSettings), load(NodeSettings)
    assert len({controller.health_port, tunnel.health_port, node.health_port}) == 3


def test_defaults_of_the_node_match_the_aws_driver() -> None:
    node = load(NodeSettings)
    assert node.kubelet_socket == Path("/var/lib/kubelet/plugins/efs.csi.aws.com/csi.sock")
    assert (node.force_unmount, node.unmount_timeout_seconds) == (False, 30)
    assert (node.attach_limit, node.max_inflight_mounts, node.has_volume_metrics) == (0, 0, False)
    assert node.registration_folder is None


@pytest.mark.parametrize("text", ["tunnel.sock", "/" + "x" * 106])
def test_sockets_have_short_absolute_paths(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("KUBE_EFS_TUNNEL_SOCKET", text)
    for kind in (TunnelSettings, NodeSettings):
        with pytest.raises(InvalidSetting, match="use an absolute path of at most 106 bytes"):
            load(kind)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        pytest.param("BASE_STUNNEL_PORT", "30000", "base_stunnel_port", 30000, id="number"),
        pytest.param("EFS_POLLING_INTERVAL", "0.5", "polling_interval_seconds", 0.5, id="half a second"),
        pytest.param("LOGGING_LEVEL", "debug", "logging_level", "DEBUG", id="level in lowercase"),
        pytest.param("LOGGING_LEVEL", "WARN", "logging_level", "WARNING", id="older level name of Python"),
        pytest.param("KUBE_EFS_LEADER_ELECTION", "false", "leader_election", False, id="switch"),
        pytest.param(
            "KUBE_EFS_SUBNETS", "subnet-0a, subnet-0b,", "subnets", ("subnet-0a", "subnet-0b"), id="list"
        ),
        pytest.param("AWS_REGION", "eu-west-1", "region", "eu-west-1", id="region"),
        pytest.param("POD_NAMESPACE", "storage", "namespace", "storage", id="namespace"),
        pytest.param(
            "STORAGE_PROVISIONER_NAME",
            "example.com/efs",
            "provisioner_name",
            "example.com/efs",
            id="provisioner",
        ),
        pytest.param(
            "EFS_POLLING_INTERVAL", "", "polling_interval_seconds", 300, id="empty counts as not set"
        ),
    ],
)
def test_variable_is_read(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, field: str, value: object
) -> None:
    monkeypatch.setenv(name, text)
    assert getattr(load(ControllerSettings), field) == value


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        pytest.param("BASE_STUNNEL_PORT", "80", "use 1024 to 65535", id="privileged port"),
        pytest.param("BASE_STUNNEL_PORT", "65536", "use 1024 to 65535", id="port above the maximum"),
        pytest.param("BASE_STUNNEL_PORT", "many", "valid integer", id="not a number"),
        pytest.param("EFS_POLLING_INTERVAL", "0", "use 0.1 to 86400 seconds", id="no pause"),
        pytest.param("EFS_POLLING_INTERVAL", "nan", "use 0.1 to 86400 seconds", id="not a number"),
        pytest.param("LOGGING_LEVEL", "LOUD", "use DEBUG, INFO", id="unknown level"),
        pytest.param("AWS_REGION", "us east", "use a name such as us-east-1", id="region with a space"),
        pytest.param(
            "KUBE_EFS_SUBNETS", "subnet-0a,10.0.0.0/24", "'10.0.0.0/24'", id="one invalid subnet of two"
        ),
        pytest.param("AWS_ENDPOINT_URL", "localhost:5000", "http or https URL", id="endpoint with no scheme"),
        pytest.param("EFS_DNS_SUFFIX", "amazonaws.com\nverify=no", "DNS name", id="suffix with a line break"),
        pytest.param("POD_NAMESPACE", "../kube-system", "a namespace's name", id="namespace with a path"),
        pytest.param("STORAGE_PROVISIONER_NAME", "a b", "use a name such as", id="provisioner with a space"),
        pytest.param("WORKER_IMAGE", "image; rm -rf /", "use an image's name", id="image with a command"),
        pytest.param("KUBECONFIG", "/nowhere/kubeconfig", "use a file that exists", id="missing kubeconfig"),
        pytest.param("KUBECONFIG", "x" * 300, "use a file that exists", id="long kubeconfig"),
        pytest.param("KUBE_EFS_WORKER_BATCH", "0", "use 1 to 10000", id="empty batch"),
    ],
)
def test_invalid_value_is_refused_with_its_name_and_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, told: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidSetting) as caught:
        load(ControllerSettings)
    assert caught.value.field == name
    assert str(caught.value).startswith(f"{name}: ")
    assert told in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="another host name needs root")
def test_invalid_host_name_is_reported_with_the_variables_to_set() -> None:
    inside = (
        "import runpy, socket, sys; socket.sethostname('(none)'); sys.argv[1:] = ['tunnel'];"
        "runpy.run_module('kube_efs', run_name='__main__')"
    )
    command = ["unshare", "--uts", sys.executable, "-c", inside]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    told = answer.stdout + answer.stderr
    assert answer.returncode == 2, told
    assert "POD_NAME" in told
    assert "NODE_NAME" in told
    assert "use a node's name" in told


def test_all_invalid_variables_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_EFS_PROBE_INTERVAL_SECONDS", "-1")
    monkeypatch.setenv("KUBE_EFS_HEALTH_PORT", "http")
    monkeypatch.setenv("KUBE_EFS_ZONE", "us/east")
    with pytest.raises(InvalidSetting) as caught:
        load(TunnelSettings)
    first, *lines = str(caught.value).splitlines()
    assert first == "3 settings are not valid:"
    assert sorted(line.strip().partition(":")[0] for line in lines) == [
        "KUBE_EFS_HEALTH_PORT",
        "KUBE_EFS_PROBE_INTERVAL_SECONDS",
        "KUBE_EFS_ZONE",
    ]
    assert all("; use " in line for line in lines)


@pytest.mark.parametrize(
    ("duration", "renew", "retry"),
    [
        pytest.param("10", "10", "2", id="lease duration shorter than the renewal"),
        pytest.param("15", "2", "2", id="renewal shorter than the retry"),
    ],
)
def test_lease_durations_must_be_consistent(
    monkeypatch: pytest.MonkeyPatch, duration: str, renew: str, retry: str
) -> None:
    monkeypatch.setenv("KUBE_EFS_LEASE_DURATION_SECONDS", duration)
    monkeypatch.setenv("KUBE_EFS_LEASE_RENEW_SECONDS", renew)
    monkeypatch.setenv("KUBE_EFS_LEASE_RETRY_SECONDS", retry)
    with pytest.raises(InvalidSetting, match=f"they are {duration}, {renew} and {retry}"):
        load(ControllerSettings)


def test_leader_beside_an_efs_provisioner_stops_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_EFS_BACKENDS", "directory")
    monkeypatch.setenv("KUBE_EFS_LEASE_DURATION_SECONDS", "60")
    monkeypatch.setenv("KUBE_EFS_LEASE_RENEW_SECONDS", "15")
    for name, value in PAIR.items():
        monkeypatch.setenv(name, value)
    assert load(ControllerSettings).lease_renew_seconds == 15
    monkeypatch.setenv("KUBE_EFS_OLDER_PERMISSIONS", "true")
    with pytest.raises(InvalidSetting, match="KUBE_EFS_LEASE_RENEW_SECONDS must be less than 15 with"):
        load(ControllerSettings)


def test_settings_can_be_created_by_name_and_are_frozen() -> None:
    settings = ControllerSettings(base_stunnel_port=31000)
    assert settings.base_stunnel_port == 31000
    with pytest.raises(FrozenInstanceError):
        settings.base_stunnel_port = 1  # type: ignore[misc]  # that it cannot be set is the point


# --- directory volumes

PAIR = {"FILE_SYSTEM_ID": "fs-47a2c22e", "PROVISIONER_NAME": "example.com/aws-efs"}


def given(monkeypatch: pytest.MonkeyPatch, **variables: str) -> ControllerSettings:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    return load(ControllerSettings)


def faults(monkeypatch: pytest.MonkeyPatch, **variables: str) -> list[str]:
    """The reported problems of these variables."""
    with pytest.raises(InvalidSetting) as caught:
        given(monkeypatch, **variables)
    first, *rest = str(caught.value).splitlines()
    assert not rest or first == f"{len(rest)} settings are not valid:"
    return [line.strip() for line in rest] or [first]


def test_directory_volumes_are_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(monkeypatch).directory_provisioners == ()


def test_variables_of_the_older_system_configure_one_provisioner(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = given(monkeypatch, **PAIR, DNS_NAME="", AWS_REGION="us-west-2").directory_provisioners
    assert (one.name, one.file_system_id) == ("example.com/aws-efs", "fs-47a2c22e")
    assert (one.dns_name, one.path, one.base, one.mount) == (None, None, None, None)


def test_every_setting_of_a_provisioner_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = given(
        monkeypatch,
        **PAIR,
        DNS_NAME="efs.example.com",
        KUBE_EFS_DIRECTORY_PATH="/pvs/",
        KUBE_EFS_DIRECTORY_MOUNT="/persistentvolumes",
    ).directory_provisioners
    assert (one.dns_name, str(one.base), one.mount) == ("efs.example.com", "/pvs", Path("/persistentvolumes"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            '[{"name": "example.com/a", "file_system_id": "fs-1"},'
            ' {"name": "example.com/b", "file_system_id": "fs-2", "dns_name": "b.example.com",'
            ' "path": "/b", "mount": "/mnt/b"}]',
            id="JSON",
        ),
        pytest.param(
            "- name: example.com/a\n"
            "  file_system_id: fs-1\n"
            "- name: example.com/b\n"
            "  file_system_id: fs-2\n"
            "  dns_name: b.example.com\n"
            "  path: /b\n"
            "  mount: /mnt/b\n",
            id="YAML",
        ),
    ],
)
def test_list_adds_provisioners(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    settings = given(monkeypatch, **PAIR, KUBE_EFS_DIRECTORY_PROVISIONERS=text)
    single, first, second = settings.directory_provisioners
    assert single.name == "example.com/aws-efs"
    assert (first.name, first.file_system_id, first.base) == ("example.com/a", "fs-1", None)
    assert (second.name, second.dns_name, str(second.base)) == ("example.com/b", "b.example.com", "/b")
    assert second.mount == Path("/mnt/b")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("[", "is not YAML; use a list in JSON or YAML", id="not YAML"),
        pytest.param("name: a", "is not a list", id="not a list"),
        pytest.param("[a]", "KUBE_EFS_DIRECTORY_PROVISIONERS.0: 'a' is not a mapping", id="list of texts"),
        pytest.param(
            "[{name: example.com/a}]",
            "KUBE_EFS_DIRECTORY_PROVISIONERS.0.file_system_id: ",
            id="no file system",
        ),
        pytest.param(
            "[{name: a b, file_system_id: fs-1}]",
            "PROVISIONERS.0.name: 'a b' is not a valid provisioner name",
            id="name",
        ),
        pytest.param(
            "[{name: a, file_system_id: ../x}]", "PROVISIONERS.0.file_system_id: '../x'", id="file system"
        ),
        pytest.param("[{name: a, file_system_id: fs-1, path: pvs}]", "PROVISIONERS.0.path: 'pvs'", id="path"),
        pytest.param(
            "[{name: a, file_system_id: fs-1, server: b}]", "PROVISIONERS.0.server: ", id="unknown key"
        ),
    ],
)
def test_list_of_provisioners_is_parsed_strictly(
    monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    (fault,) = faults(monkeypatch, KUBE_EFS_DIRECTORY_PROVISIONERS=text)
    assert fault.startswith("KUBE_EFS_DIRECTORY_PROVISIONERS")
    assert told in fault


@pytest.mark.parametrize(
    ("text", "backends"),
    [
        pytest.param("tunnel", (BackendName.TUNNEL,), id="one"),
        pytest.param(" directory , tunnel,", (BackendName.DIRECTORY, BackendName.TUNNEL), id="both"),
        pytest.param("csi", (BackendName.CSI,), id="CSI driver's"),
        pytest.param("", (BackendName.TUNNEL, BackendName.DIRECTORY), id="empty counts as not set"),
    ],
)
def test_kinds_of_volumes_are_parsed(
    monkeypatch: pytest.MonkeyPatch, text: str, backends: tuple[BackendName, ...]
) -> None:
    assert given(monkeypatch, KUBE_EFS_BACKENDS=text).backends == backends


@pytest.mark.parametrize("text", ["Tunnel", "nfs", ",", "tunnel;directory"])
def test_other_kinds_of_volumes_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (fault,) = faults(monkeypatch, KUBE_EFS_BACKENDS=text)
    assert fault.startswith("KUBE_EFS_BACKENDS")
    assert fault.endswith("use one or more of tunnel, directory, csi, with commas between them")


def test_removing_directories_of_access_points_needs_worker_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"KUBE_EFS_DELETE_ACCESS_POINT_ROOT_DIR": "true"}
    assert given(monkeypatch, **wanted, KUBE_EFS_BACKENDS="tunnel,csi").delete_access_point_root_dir
    (fault,) = faults(monkeypatch, **wanted, KUBE_EFS_BACKENDS="csi", CSI_ENDPOINT="unix:///csi.sock")
    assert fault.endswith(
        "needs worker pods: put tunnel into KUBE_EFS_BACKENDS, or set KUBE_EFS_WORKER_MOUNTS to csi"
    )


@pytest.mark.parametrize(
    ("variables", "has_workers", "use_driver"),
    [
        pytest.param({"KUBE_EFS_BACKENDS": "tunnel,csi"}, True, False, id="tunnels"),
        pytest.param(
            {"KUBE_EFS_BACKENDS": "tunnel,csi", "KUBE_EFS_WORKER_MOUNTS": "csi"}, True, True, id="both"
        ),
        pytest.param({"KUBE_EFS_BACKENDS": "csi"}, True, True, id="only the driver"),
        pytest.param(
            {"KUBE_EFS_BACKENDS": "csi", "CSI_ENDPOINT": "unix:///s"}, False, True, id="csi-provisioner"
        ),
        pytest.param(
            {"KUBE_EFS_BACKENDS": "csi", "CSI_ENDPOINT": "unix:///s", "KUBE_EFS_WORKER_MOUNTS": "csi"},
            True,
            True,
            id="csi-provisioner on request",
        ),
        pytest.param({**PAIR, "KUBE_EFS_BACKENDS": "directory"}, False, True, id="a mounted file system"),
    ],
)
def test_worker_pods_depend_on_the_kinds_of_volumes(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], has_workers: bool, use_driver: bool
) -> None:
    settings = given(monkeypatch, **variables)
    assert (settings.has_workers, settings.workers_use_driver) == (has_workers, use_driver)


def test_worker_pods_mount_through_tunnels_only_if_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    (fault,) = faults(monkeypatch, KUBE_EFS_BACKENDS="csi", KUBE_EFS_WORKER_MOUNTS="tunnel")
    assert fault == "KUBE_EFS_WORKER_MOUNTS is tunnel, so KUBE_EFS_BACKENDS must contain tunnel"


def test_invalid_tags_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = given(monkeypatch, KUBE_EFS_ACCESS_POINT_TAGS="team:storage env:").access_point_tags
    assert [(tag.key, tag.value) for tag in tags] == [("team", "storage"), ("env", "")]
    (fault,) = faults(monkeypatch, KUBE_EFS_ACCESS_POINT_TAGS="a:b:c")
    assert fault.startswith("KUBE_EFS_ACCESS_POINT_TAGS")


def test_provisioners_require_the_directory_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(monkeypatch, **PAIR, KUBE_EFS_BACKENDS="tunnel").directory_provisioners == ()


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        pytest.param({"FILE_SYSTEM_ID": "fs-1"}, "PROVISIONER_NAME", id="file system only"),
        pytest.param({"PROVISIONER_NAME": "a"}, "FILE_SYSTEM_ID", id="name only"),
        pytest.param(
            {"KUBE_EFS_BACKENDS": "directory"}, "FILE_SYSTEM_ID and PROVISIONER_NAME", id="no other backend"
        ),
        pytest.param({**PAIR, "PROVISIONER_NAME": ""}, "PROVISIONER_NAME", id="empty"),
    ],
)
def test_provisioner_requires_name_and_file_system(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    assert faults(monkeypatch, **variables) == [f"{told} must be set for directory volumes"]


def test_list_replaces_the_single_provisioner(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[{name: a, file_system_id: fs-1}]"
    settings = given(monkeypatch, KUBE_EFS_BACKENDS="directory", KUBE_EFS_DIRECTORY_PROVISIONERS=text)
    assert [one.name for one in settings.directory_provisioners] == ["a"]


@pytest.mark.parametrize(
    ("variables", "twice"),
    [
        pytest.param(
            {"KUBE_EFS_DIRECTORY_PROVISIONERS": "[{name: example.com/aws-efs, file_system_id: fs-1}]"},
            "example.com/aws-efs",
            id="in the list",
        ),
        pytest.param(
            {"PROVISIONER_NAME": "gnuthought.com/efs-stunnel"},
            "gnuthought.com/efs-stunnel",
            id="name of the tunnel provisioner",
        ),
    ],
)
def test_provisioner_names_must_be_unique(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], twice: str
) -> None:
    assert faults(monkeypatch, **{**PAIR, **variables}) == [
        f"each provisioner needs a unique name; {twice} is given twice"
    ]


def test_name_of_the_tunnel_provisioner_is_free_without_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "gnuthought.com/efs-stunnel"
    settings = given(monkeypatch, **{**PAIR, "PROVISIONER_NAME": name}, KUBE_EFS_BACKENDS="directory")
    assert [one.name for one in settings.directory_provisioners] == [name]


def test_missing_and_malformed_variables_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = faults(
        monkeypatch, FILE_SYSTEM_ID="47a2c22e", AWS_REGION="us west", KUBE_EFS_BACKENDS="directory"
    )
    assert [line.partition(":")[0] for line in found] == [
        "AWS_REGION",
        "FILE_SYSTEM_ID",
        "PROVISIONER_NAME must be set for directory volumes",
    ]


def test_all_violated_rules_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = faults(monkeypatch, FILE_SYSTEM_ID="fs-1", KUBE_EFS_LEASE_DURATION_SECONDS="5")
    assert [line.partition(" must be")[0] for line in found] == [
        "PROVISIONER_NAME",
        "KUBE_EFS_LEASE_DURATION_SECONDS",
    ]


@pytest.mark.parametrize("name", ["example.com/aws-efs", "aws_efs", "Example.com/AWS.efs", "a", "a/b"])
def test_valid_provisioner_names_are_accepted(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (one,) = given(monkeypatch, **{**PAIR, "PROVISIONER_NAME": name}).directory_provisioners
    assert one.name == name


@pytest.mark.parametrize("name", ["a b", "a/b/c", "/a", "a/", "-a", "a_", "x" * 64, "a_b.com/efs", "a\n"])
def test_invalid_provisioner_names_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (fault,) = faults(monkeypatch, **{**PAIR, "PROVISIONER_NAME": name})
    assert "is not a valid provisioner name; use a name such as example.com/aws-efs" in fault


@pytest.mark.parametrize("name", ["efs.example.com", "FS-1.efs.example.com", "efs.example.com.", "10.0.0.4"])
def test_server_name_is_not_normalized(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (one,) = given(monkeypatch, **PAIR, DNS_NAME=name).directory_provisioners
    assert one.dns_name == name


@pytest.mark.parametrize("name", ["efs.example.com:/x", "a b", "-a", "a..b"])
def test_invalid_server_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert faults(monkeypatch, **PAIR, DNS_NAME=name) == [
        f"DNS_NAME: {name!r} is not a valid DNS name; use a DNS name"
    ]


def test_limits_of_shared_volumes_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"team": ["fs-1", "fsap-2"], "free": ["*"], "*": []}'
    limits = given(monkeypatch, KUBE_EFS_SHARED_VOLUME_LIMITS=text).shared_volume_limits
    assert limits == Limits(
        by_namespace={"team": Allowance(frozenset({"fs-1", "fsap-2"})), "free": Allowance()},
        others=Allowance(frozenset()),
    )
    assert given(monkeypatch, KUBE_EFS_SHARED_VOLUME_LIMITS="").shared_volume_limits == Limits()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("[", "is not YAML; use a mapping of names to lists of ids", id="not YAML"),
        pytest.param("[fs-1]", "use a mapping of names to lists of ids", id="not a mapping"),
        pytest.param("{team: fs-1}", "has something other than lists", id="not a list"),
        pytest.param("{team: [fs-1, nfs-2]}", "names 'nfs-2', which is not a valid ID", id="invalid ID"),
    ],
)
def test_malformed_limits_of_shared_volumes_are_refused(
    monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    (fault,) = faults(monkeypatch, KUBE_EFS_SHARED_VOLUME_LIMITS=text)
    assert fault.startswith("KUBE_EFS_SHARED_VOLUME_LIMITS")
    assert told in fault


# --- settings of the operator for other processes


def test_values_for_other_processes_are_converted_to_text(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = '"KUBE_EFS_SHARED_VOLUME_LIMITS": {"*": []}'
    text = f'{{{limits}, "EFS_POLLING_INTERVAL": 60, "AWS_USE_FIPS_ENDPOINT": true}}'
    monkeypatch.setenv("KUBE_EFS_CONTROLLER_SETTINGS", text)
    monkeypatch.setenv("KUBE_EFS_NODE_SETTINGS", "LOGGING_LEVEL: DEBUG")
    settings = load(OperatorSettings)
    assert settings.controller == {
        "KUBE_EFS_SHARED_VOLUME_LIMITS": '{"*": []}',
        "EFS_POLLING_INTERVAL": "60",
        "AWS_USE_FIPS_ENDPOINT": "true",
    }
    assert settings.node == {"LOGGING_LEVEL": "DEBUG"}
    assert settings.tunnel == {}


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        pytest.param("CONTROLLER", "often", "is not a mapping", id="not a mapping"),
        pytest.param("CONTROLLER", "[", "is not YAML", id="not YAML"),
        pytest.param(
            "CONTROLLER", "{1: 1}", "names '1', which is not a variable name", id="not a variable name"
        ),
        pytest.param(
            "CONTROLLER",
            "KUBE_EFS_USAGE_INTERVAL: 60",
            "(did you mean KUBE_EFS_USAGE_INTERVAL_SECONDS?)",
            id="unknown parameter",
        ),
        pytest.param(
            "CONTROLLER", "EFS_POLLING_INTERVAL: 0", "which accepts 0.1 to 86400 seconds", id="invalid value"
        ),
        pytest.param(
            "CONTROLLER",
            "KUBE_EFS_SHARED_VOLUME_LIMITS: {a: b}",
            "which accepts a mapping",
            id="invalid structure",
        ),
        pytest.param(
            "CONTROLLER", "WORKER_IMAGE: x", "which is set by KUBE_EFS_IMAGE", id="set by the operator"
        ),
        pytest.param(
            "CONTROLLER",
            "KUBE_EFS_METRICS_PORT: 9999",
            "which is set by the operator on OpenShift",
            id="set by the operator on OpenShift",
        ),
        pytest.param(
            "CONTROLLER",
            "AWS_CONFIG_FILE: /custom",
            "which belongs in the Secret aws-efs-cloud-credentials",
            id="of the credentials",
        ),
        pytest.param(
            "CONTROLLER",
            'KUBE_EFS_LEADER_ELECTION: "false"',
            "which is always true, because there are two controllers",
            id="two controllers at once",
        ),
        pytest.param(
            "TUNNEL", "KUBE_EFS_STATE_DIR: /tmp", "is set by the manifests", id="set by the manifests"
        ),
        pytest.param(
            "TUNNEL",
            "KUBE_EFS_HEALTH_HOST: 10.0.0.1",
            "the kubelet probes 127.0.0.1; use 0.0.0.0 or 127.0.0.1",
            id="address without the probes",
        ),
        pytest.param(
            "CONTROLLER",
            "KUBE_EFS_HEALTH_HOST: 127.0.0.1",
            "the kubelet probes the address of the pod; use 0.0.0.0",
            id="loopback without the probes",
        ),
        pytest.param(
            "NODE", 'KUBE_EFS_HEALTH_HOST: "::"', "the kubelet probes 127.0.0.1", id="IPv6 without the probes"
        ),
        pytest.param("NODE", "EFS_POLLING_INTERVAL: 60", "does not have", id="of another process"),
        pytest.param("NODE", "KUBE_EFS_NOTHING: 1", "does not have", id="of no process"),
        pytest.param("NODE", "LOGGING_LEVEL: 2026-01-01", "that is not JSON", id="date"),
    ],
)
def test_invalid_values_for_other_processes_are_refused(
    variable: str, text: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"KUBE_EFS_{variable}_SETTINGS", text)
    with pytest.raises(InvalidSetting) as caught:
        load(OperatorSettings)
    assert complaint in str(caught.value)


def test_secret_in_the_wrong_variable_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    monkeypatch.setenv("KUBE_EFS_CONTROLLER_SETTINGS", f'{{"AWS_SECRET_ACCESS_KEY": "{secret}"}}')
    with pytest.raises(InvalidSetting) as caught:
        load(OperatorSettings)
    assert "belongs in the Secret aws-efs-cloud-credentials" in str(caught.value)
    assert secret not in str(caught.value)
