"""What is said of the driver in its status."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kube_efs.operator.cluster_csi_driver import (
    LogLevel,
    ManagementState,
    read_driver_resource,
    read_log_level,
)
from kube_efs.operator.desired_objects import Component
from kube_efs.operator.installer import InstallResult
from kube_efs.operator.progress import Progress, rollout_progress
from kube_efs.operator.status import (
    OperatorCondition,
    installed_conditions,
    management_condition,
    merge_conditions,
    read_conditions,
    render_conditions,
    uninstall_conditions,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def daemon_set(**status: int) -> dict[str, Any]:
    counts = {
        "observedGeneration": 2,
        "desiredNumberScheduled": 3,
        "updatedNumberScheduled": 3,
        "numberAvailable": 3,
        **status,
    }
    return {"kind": "DaemonSet", "metadata": {"name": "d", "generation": 2}, "spec": {}, "status": counts}


def said(conditions: tuple[OperatorCondition, ...]) -> dict[str, bool]:
    return {one.type: one.status for one in conditions}


def complete_result() -> InstallResult:
    result = InstallResult()
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "efs-manager", "generation": 1},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 1, "updatedReplicas": 2, "availableReplicas": 2},
    }
    result.workloads.update(
        {Component.TUNNEL: daemon_set(), Component.NODE: daemon_set(), Component.CONTROLLER: deployment}
    )
    return result


@pytest.mark.parametrize(
    ("status", "words"),
    [
        pytest.param({}, "", id="all well"),
        pytest.param({"observedGeneration": 1}, "the new specification has not been read yet", id="new"),
        pytest.param({"numberUnavailable": 1}, "1 of 3 pods are not ready", id="not ready"),
        pytest.param({"updatedNumberScheduled": 1}, "2 of 3 pods are of an older version", id="older"),
    ],
)
def test_how_far_a_rollout_is(status: dict[str, int], words: str) -> None:
    assert rollout_progress(daemon_set(**status)) == words


def test_a_whole_installation_is_available_and_nothing_else() -> None:
    found = said(installed_conditions(complete_result(), Progress()))
    overall = {name: found[name] for name in ("Available", "Progressing", "Degraded")}
    assert overall == {"Available": True, "Progressing": False, "Degraded": False}
    assert f"{Component.CREDENTIALS}Available" not in found


def test_an_error_degrades_its_part_and_the_whole_but_what_works_stays_available() -> None:
    result = complete_result()
    result.errors[Component.STATIC].append("ServiceAccount x: answered 403")
    conditions = installed_conditions(result, Progress())
    degraded = {one.type: one.message for one in conditions if one.type.endswith("Degraded") and one.status}
    assert degraded == {
        "CSIStaticResourceControllerDegraded": "ServiceAccount x: answered 403",
        "Degraded": "CSIStaticResourceControllerDegraded: ServiceAccount x: answered 403",
    }
    assert said(conditions)["Available"] is True


@pytest.mark.parametrize(
    ("has_secret", "message"),
    [
        (True, "there is a Secret {}: the controller uses its keys or role"),
        (False, "there is no Secret {}: the controller uses the role of its service account or instance"),
    ],
    ids=["a secret", "no secret"],
)
def test_where_credentials_come_from_is_told(has_secret: bool, message: str) -> None:
    conditions = installed_conditions(complete_result(), Progress(), has_credentials=has_secret)
    (found,) = [one for one in conditions if one.type == "CredentialsSecretFound"]
    assert (found.status, found.message) == (has_secret, message.format("aws-efs-cloud-credentials"))
    assert said(conditions)["Degraded"] is False


def test_what_is_not_made_yet_is_not_available() -> None:
    result = complete_result()
    del result.workloads[Component.NODE]
    found = {one.type: one for one in installed_conditions(result, Progress())}
    assert not found["Available"].status
    assert found["Available"].message == "AWSEFSDriverNodeServiceControllerAvailable is false"
    assert found[f"{Component.NODE}Progressing"].message == "not created yet"


@pytest.mark.parametrize(
    ("progress", "reason", "in_use", "progressing"),
    [
        pytest.param(Progress(blocked="pods use volumes"), "VolumesInUse", True, True, id="in use"),
        pytest.param(Progress(waiting="pods are ending"), "Removing", False, True, id="going"),
        pytest.param(Progress(), "Removed", False, False, id="gone"),
    ],
)
def test_a_removal_says_what_it_waits_for(
    progress: Progress, reason: str, in_use: bool, progressing: bool
) -> None:
    found = {one.type: one for one in uninstall_conditions(progress)}
    assert found["Available"].reason == reason
    assert found["Available"].status is in_use  # nothing has been taken away yet
    assert (found["VolumesInUse"].status, found["Progressing"].status) == (in_use, progressing)


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    before = read_conditions(
        [
            {"type": "A", "status": "True", "reason": "Old", "lastTransitionTime": "2020-01-01T00:00:00Z"},
            {"type": "B", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
        ]
    )
    now = [OperatorCondition(type="A", status=True, reason="New"), OperatorCondition(type="B", status=False)]
    first, second = render_conditions(now, before, NOW)
    assert (first["lastTransitionTime"], first["reason"]) == ("2020-01-01T00:00:00Z", "New")
    assert second["lastTransitionTime"] == "2026-11-21T12:00:00Z"


def test_conditions_of_others_stay_and_own_ones_that_are_over_go() -> None:
    before = [
        OperatorCondition(type=name, status=True) for name in ("Upgradeable", "VolumesInUse", "Available")
    ]
    found = merge_conditions([OperatorCondition(type="Available", status=False)], before)
    assert said(found) == {"Available": False, "Upgradeable": True}


@pytest.mark.parametrize(
    ("stated", "state"),
    [
        ("Managed", ManagementState.MANAGED),
        ("", ManagementState.MANAGED),
        ("Unmanaged", ManagementState.UNMANAGED),
        ("Removed", ManagementState.REMOVED),
        ("Force", ManagementState.UNKNOWN),
        ("Unknown", ManagementState.UNKNOWN),
    ],
)
def test_what_the_administrator_asks_for_is_read(stated: str, state: ManagementState) -> None:
    driver = read_driver_resource(
        {"metadata": {"name": "efs.csi.aws.com"}, "spec": {"managementState": stated}}
    )
    assert driver.state is state
    assert management_condition(driver).status is (state is ManagementState.UNKNOWN)


@pytest.mark.parametrize(
    ("text", "level"), [("", LogLevel.NORMAL), ("TraceAll", LogLevel.TRACE_ALL), ("Loud", None)]
)
def test_levels_are_read(text: str, level: LogLevel | None) -> None:
    assert read_log_level(text) is level
