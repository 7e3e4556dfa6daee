"""Settings: what is read, what is refused and in which words."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from kube_efs.model.errors import InvalidSetting
from kube_efs.settings import ControllerSettings, TunnelSettings, load

_ALL = {
    str(field.validation_alias)
    for kind in (ControllerSettings, TunnelSettings)
    for field in kind.model_fields.values()
}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _ALL:
        monkeypatch.delenv(name, raising=False)


def test_the_older_system_s_defaults_hold() -> None:
    controller, tunnel = load(ControllerSettings), load(TunnelSettings)
    assert controller.base_stunnel_port == 20490
    assert controller.polling_interval_seconds == 300
    assert controller.provision_backoff_seconds == 60
    assert controller.provisioner_name == "gnuthought.com/efs-stunnel"
    assert controller.namespace == "openshift-efs-stunnel"
    assert controller.logging_level == tunnel.logging_level == "INFO"
    assert tunnel.stunnel_conf_path == Path("/tmp/stunnel.conf")
    assert tunnel.stunnel_path is None


def test_workers_run_the_image_of_this_version() -> None:
    image = load(ControllerSettings).worker_image
    assert image.startswith("quay.io/kube-efs/kube-efs:")
    assert image.rpartition(":")[2][0].isdigit()


def test_each_process_serves_health_on_a_port_of_its_own() -> None:
    # Both may run on one node's network.
    assert load(ControllerSettings).health_port != load(TunnelSettings).health_port


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        pytest.param("BASE_STUNNEL_PORT", "30000", "base_stunnel_port", 30000, id="a number"),
        pytest.param("EFS_POLLING_INTERVAL", "0.5", "polling_interval_seconds", 0.5, id="half a second"),
        pytest.param("LOGGING_LEVEL", "debug", "logging_level", "DEBUG", id="a level in small letters"),
        pytest.param(
            "LOGGING_LEVEL", "WARN", "logging_level", "WARNING", id="Python's older name of a level"
        ),
        pytest.param("KUBE_EFS_LEADER_ELECTION", "false", "leader_election", False, id="a switch"),
        pytest.param(
            "KUBE_EFS_SUBNETS", "subnet-0a, subnet-0b,", "subnets", ("subnet-0a", "subnet-0b"), id="a list"
        ),
        pytest.param("AWS_REGION", "eu-west-1", "region", "eu-west-1", id="a region"),
        pytest.param("POD_NAMESPACE", "storage", "namespace", "storage", id="a namespace"),
        pytest.param(
            "STORAGE_PROVISIONER_NAME",
            "example.com/efs",
            "provisioner_name",
            "example.com/efs",
            id="a provisioner",
        ),
        pytest.param(
            "EFS_POLLING_INTERVAL", "", "polling_interval_seconds", 300, id="empty counts as not set"
        ),
    ],
)
def test_a_variable_is_read(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, field: str, value: object
) -> None:
    monkeypatch.setenv(name, text)
    assert getattr(load(ControllerSettings), field) == value


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        pytest.param("BASE_STUNNEL_PORT", "80", "use 1024 to 65535", id="a privileged port"),
        pytest.param("BASE_STUNNEL_PORT", "65536", "use 1024 to 65535", id="a port past the last"),
        pytest.param("BASE_STUNNEL_PORT", "many", "valid integer", id="no number"),
        pytest.param("EFS_POLLING_INTERVAL", "0", "use 0.1 to 86400 seconds", id="no pause"),
        pytest.param("EFS_POLLING_INTERVAL", "nan", "use 0.1 to 86400 seconds", id="not a number"),
        pytest.param("LOGGING_LEVEL", "LOUD", "use DEBUG, INFO", id="an unknown level"),
        pytest.param("AWS_REGION", "us east", "use a name such as us-east-1", id="a region with a space"),
        pytest.param(
            "KUBE_EFS_SUBNETS", "subnet-0a,10.0.0.0/24", "'10.0.0.0/24'", id="one bad subnet of two"
        ),
        pytest.param(
            "AWS_ENDPOINT_URL", "localhost:5000", "http or https URL", id="an endpoint with no scheme"
        ),
        pytest.param(
            "EFS_DNS_SUFFIX", "amazonaws.com\nverify=no", "DNS name", id="a suffix with a line break"
        ),
        pytest.param("POD_NAMESPACE", "../kube-system", "a namespace's name", id="a namespace with a path"),
        pytest.param(
            "STORAGE_PROVISIONER_NAME", "a b", "use a name such as", id="a provisioner with a space"
        ),
        pytest.param("WORKER_IMAGE", "image; rm -rf /", "use an image's name", id="an image with a command"),
        pytest.param(
            "KUBECONFIG", "/nowhere/kubeconfig", "use a file that exists", id="a missing kubeconfig"
        ),
        pytest.param("KUBE_EFS_WORKER_BATCH", "0", "use 1 to 10000", id="an empty batch"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, told: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidSetting) as caught:
        load(ControllerSettings)
    assert caught.value.field == name
    assert str(caught.value).startswith(f"{name}: ")
    assert told in str(caught.value)


def test_all_bad_variables_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_EFS_PROBE_INTERVAL_SECONDS", "-1")
    monkeypatch.setenv("KUBE_EFS_HEALTH_PORT", "http")
    monkeypatch.setenv("KUBE_EFS_ZONE", "us/east")
    with pytest.raises(InvalidSetting) as caught:
        load(TunnelSettings)
    first, *lines = str(caught.value).splitlines()
    assert first == "3 settings are not acceptable:"
    assert sorted(line.strip().partition(":")[0] for line in lines) == [
        "KUBE_EFS_HEALTH_PORT",
        "KUBE_EFS_PROBE_INTERVAL_SECONDS",
        "KUBE_EFS_ZONE",
    ]
    assert all("; use " in line for line in lines)


@pytest.mark.parametrize(
    ("duration", "renew", "retry"),
    [
        pytest.param("10", "10", "2", id="two leaders at once for a moment"),
        pytest.param("15", "2", "2", id="no time for a second try"),
    ],
)
def test_times_of_the_lease_must_fit_together(
    monkeypatch: pytest.MonkeyPatch, duration: str, renew: str, retry: str
) -> None:
    monkeypatch.setenv("KUBE_EFS_LEASE_DURATION_SECONDS", duration)
    monkeypatch.setenv("KUBE_EFS_LEASE_RENEW_SECONDS", renew)
    monkeypatch.setenv("KUBE_EFS_LEASE_RETRY_SECONDS", retry)
    with pytest.raises(InvalidSetting, match=f"they are {duration}, {renew} and {retry}"):
        load(ControllerSettings)


def test_settings_can_be_built_by_name_and_stay_as_they_are() -> None:
    settings = ControllerSettings(base_stunnel_port=31000)
    assert settings.base_stunnel_port == 31000
    with pytest.raises(ValidationError, match="frozen"):
        settings.base_stunnel_port = 1  # type: ignore[misc]  # that it cannot be set is the point
