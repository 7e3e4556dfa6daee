"""The status of the ClusterCSIDriver."""

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


def statuses(conditions: tuple[OperatorCondition, ...]) -> dict[str, bool]:
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
    ("status", "message"),
    [
        pytest.param({}, "", id="complete"),
        pytest.param(
            {"observedGeneration": 1}, "the new specification has not been read yet", id="not read yet"
        ),
        pytest.param({"numberUnavailable": 1}, "1 of 3 pods are not ready", id="not ready"),
        pytest.param(
            {"updatedNumberScheduled": 1}, "2 of 3 pods are of an older version", id="older version"
        ),
    ],
)
def test_rollout_progress_names_the_pods_that_are_not_done(status: dict[str, int], message: str) -> None:
    assert rollout_progress(daemon_set(**status)) == message


def test_complete_installation_is_available_only() -> None:
    found = statuses(installed_conditions(complete_result(), Progress()))
    overall = {name: found[name] for name in ("Available", "Progressing", "Degraded")}
    assert overall == {"Available": True, "Progressing": False, "Degraded": False}
    assert f"{Component.CREDENTIALS}Available" not in found


def test_error_degrades_its_component_and_the_whole_but_not_availability() -> None:
    result = complete_result()
    result.errors[Component.STATIC].append("ServiceAccount x: answered 403")
    conditions = installed_conditions(result, Progress())
    degraded = {one.type: one.message for one in conditions if one.type.endswith("Degraded") and one.status}
    assert degraded == {
        "CSIStaticResourceControllerDegraded": "ServiceAccount x: answered 403",
        "Degraded": "CSIStaticResourceControllerDegraded: ServiceAccount x: answered 403",
    }
    assert statuses(conditions)["Available"] is True


@pytest.mark.parametrize(
    ("has_secret", "message"),
    [
        (True, "there is a Secret {}: the controller uses its keys or role"),
        (False, "there is no Secret {}: the controller uses the role of its service account or instance"),
    ],
    ids=["a secret", "no secret"],
)
def test_condition_shows_the_source_of_credentials(has_secret: bool, message: str) -> None:
    conditions = installed_conditions(complete_result(), Progress(), has_credentials=has_secret)
    (found,) = [one for one in conditions if one.type == "CredentialsSecretFound"]
    assert (found.status, found.message) == (has_secret, message.format("aws-efs-cloud-credentials"))
    assert statuses(conditions)["Degraded"] is False


def test_workload_that_does_not_exist_is_not_available() -> None:
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
        pytest.param(Progress(waiting="pods are ending"), "Removing", False, True, id="pods end"),
        pytest.param(Progress(), "Removed", False, False, id="removed"),
    ],
)
def test_uninstall_conditions_show_what_the_removal_waits_for(
    progress: Progress, reason: str, in_use: bool, progressing: bool
) -> None:
    found = {one.type: one for one in uninstall_conditions(progress)}
    assert found["Available"].reason == reason
    assert found["Available"].status is in_use  # nothing is removed yet
    assert (found["VolumesInUse"].status, found["Progressing"].status) == (in_use, progressing)


def test_transition_time_changes_only_with_the_status() -> None:
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


def test_conditions_of_other_writers_are_kept_and_old_own_ones_removed() -> None:
    before = [
        OperatorCondition(type=name, status=True) for name in ("Upgradeable", "VolumesInUse", "Available")
    ]
    found = merge_conditions([OperatorCondition(type="Available", status=False)], before)
    assert statuses(found) == {"Available": False, "Upgradeable": True}


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
def test_management_state_is_read(stated: str, state: ManagementState) -> None:
    driver = read_driver_resource(
        {"metadata": {"name": "efs.csi.aws.com"}, "spec": {"managementState": stated}}
    )
    assert driver.state is state
    assert management_condition(driver).status is (state is ManagementState.UNKNOWN)


@pytest.mark.parametrize(
    ("text", "level"), [("", LogLevel.NORMAL), ("TraceAll", LogLevel.TRACE_ALL), ("Loud", None)]
)
def test_log_level_is_read(text: str, level: LogLevel | None) -> None:
    assert read_log_level(text) is level
