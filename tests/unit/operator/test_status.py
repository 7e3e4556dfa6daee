"""The status of the ClusterCSIDriver."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kube_efs.operator.cluster_csi_driver import (
    DriverResource,
    LogLevel,
    ManagementState,
    read_driver_resource,
    read_log_level,
)
from kube_efs.operator.desired_objects import Component
from kube_efs.operator.installer import InstallResult
from kube_efs.operator.progress import Progress, rollout_progress
from kube_efs.operator.status import (
    OLDER_OPERATOR_RUNS,
    OperatorCondition,
    announced_conditions,
    blocked_conditions,
    failed_conditions,
    installed_conditions,
    management_condition,
    merge_conditions,
    read_conditions,
    render_conditions,
    render_status,
    uninstall_conditions,
    unmanaged_conditions,
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
    ("progress", "reason", "available", "in_use", "progressing"),
    [
        pytest.param(Progress(blocked="pods use volumes"), "VolumesInUse", True, True, True, id="in use"),
        pytest.param(Progress(waiting="volumes are leaving"), "Removing", True, False, True, id="volumes go"),
        pytest.param(
            Progress(waiting="pods are ending", removed=frozenset({Component.CONTROLLER})),
            *("Removing", False, False, True),
            id="pods end",
        ),
        pytest.param(Progress(), "Removed", False, False, False, id="removed"),
    ],
)
def test_uninstall_conditions_show_what_the_removal_waits_for(
    progress: Progress, reason: str, available: bool, in_use: bool, progressing: bool
) -> None:
    found = {one.type: one for one in uninstall_conditions(progress)}
    assert found["Available"].reason == reason
    assert found["Available"].status is available
    assert (found["VolumesInUse"].status, found["Progressing"].status) == (in_use, progressing)


def test_removal_that_is_blocked_half_way_is_not_available() -> None:
    """The controller and the driver of the nodes are deleted; a new pod uses a volume."""
    removed = frozenset({Component.CONTROLLER, Component.NODE})
    progress = Progress(blocked="pods use volumes", removed=removed)
    installed = installed_conditions(complete_result(), Progress())
    before = render_status(driver({}), installed, complete_result(), NOW)
    after = render_status(driver(before), uninstall_conditions(progress), None, NOW)
    found = {one["type"]: one["status"] for one in after["conditions"] if one["type"].endswith("Available")}
    assert found == {
        "Available": "False",
        f"{Component.CONTROLLER}Available": "False",
        f"{Component.NODE}Available": "False",
        f"{Component.TUNNEL}Available": "True",
    }


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(uninstall_conditions(Progress(waiting="pods are ending")), id="removal"),
        pytest.param(uninstall_conditions(Progress(blocked="pods use volumes")), id="blocked removal"),
        pytest.param(blocked_conditions(OLDER_OPERATOR_RUNS, "an older operator runs"), id="older operator"),
    ],
)
def test_error_of_an_earlier_pass_disappears(new: tuple[OperatorCondition, ...]) -> None:
    before = render_status(driver({}), failed_conditions("pods: answered 500"), None, NOW)
    after = render_status(driver(before), new, None, NOW)
    found = {one["type"]: one["status"] for one in after["conditions"]}
    assert found["ConfigObservationDegraded"] == "False"


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
    new = [OperatorCondition(type="Available", status=False)]
    assert statuses(merge_conditions(new, before, complete=True)) == {"Available": False, "Upgradeable": True}


def test_conditions_of_an_older_operator_are_removed() -> None:
    names = ("AWSEFSEFSAccessPointTagsControllerDegraded", "AWSEFSNodeCredentialsRequestControllerAvailable")
    before = {"conditions": [{"type": name, "status": "True"} for name in names]}
    installed = installed_conditions(complete_result(), Progress())
    status = render_status(driver(before), installed, complete_result(), NOW)
    assert not {one["type"] for one in status["conditions"]} & set(names)


def driver(status: dict[str, Any]) -> DriverResource:
    metadata = {"name": "efs.csi.aws.com", "generation": 3}
    return read_driver_resource({"metadata": metadata, "spec": {}, "status": status})


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(failed_conditions("Proxy cluster: answered 500"), id="after an error"),
        pytest.param(
            blocked_conditions(OLDER_OPERATOR_RUNS, "an older operator runs"),
            id="while an older operator runs",
        ),
        pytest.param(
            uninstall_conditions(Progress(blocked="pods use volumes")), id="while volumes are in use"
        ),
        pytest.param(unmanaged_conditions(()), id="unmanaged"),
        pytest.param(announced_conditions({Component.TUNNEL: "the proxy changed"}), id="announcement"),
    ],
)
def test_conditions_that_a_pass_does_not_find_out_stay_with_their_time(
    new: tuple[OperatorCondition, ...],
) -> None:
    installed = installed_conditions(complete_result(), Progress())
    before = render_status(driver({}), installed, complete_result(), datetime(2020, 1, 1, tzinfo=UTC))
    after = render_status(driver(before), new, None, NOW)
    kept = {one["type"]: one for one in before["conditions"]}
    found = {one["type"]: one for one in after["conditions"]}
    assert kept.keys() <= found.keys()
    written = {one.type for one in new} | {"ManagementStateDegraded"}
    assert all(found[name] == kept[name] for name in kept.keys() - written)
    assert (after["generations"], after["readyReplicas"]) == (before["generations"], before["readyReplicas"])


def test_removed_controller_has_no_ready_replicas_while_pods_use_volumes() -> None:
    before = {"readyReplicas": 2, "generations": []}
    in_use = uninstall_conditions(Progress(blocked="pods use volumes"))
    assert render_status(driver(before), in_use, None, NOW)["readyReplicas"] == 2
    removed = Progress(blocked="pods use volumes", removed=frozenset({Component.CONTROLLER}))
    after = render_status(driver(before), uninstall_conditions(removed), None, NOW)
    assert after["readyReplicas"] == 0
    # An error of a later pass does not bring them back.
    assert render_status(driver(after), failed_conditions("pods: 500"), None, NOW)["readyReplicas"] == 0


def test_unmanaged_driver_is_not_degraded_and_keeps_its_other_conditions() -> None:
    before = [OperatorCondition(type=name, status=True) for name in ("Available", "Degraded", "Upgradeable")]
    assert statuses(unmanaged_conditions(before)) == {"Degraded": False}


def test_removed_driver_has_the_same_conditions_as_an_installed_one() -> None:
    installed = statuses(installed_conditions(complete_result(), Progress()))
    removed = statuses(uninstall_conditions(Progress()))
    assert installed.keys() - removed.keys() == {"CredentialsSecretFound"}
    assert not any(removed.values())


@pytest.mark.parametrize(
    ("generation", "is_progressing"),
    [
        pytest.param("2", False, id="a node was rebooted"),
        pytest.param("1", True, id="first rollout of this specification"),
    ],
)
def test_pods_of_rebooted_nodes_are_no_rollout(generation: str, is_progressing: bool) -> None:
    result = complete_result()
    tunnel = daemon_set(numberUnavailable=1, numberAvailable=2)
    tunnel["metadata"]["annotations"] = {"storage.openshift.io/stable-generation": generation}
    result.workloads[Component.TUNNEL] = tunnel
    found = {one.type: one for one in installed_conditions(result, Progress())}
    condition = found[f"{Component.TUNNEL}Progressing"]
    assert (condition.status, condition.message) == (is_progressing, "1 of 3 pods are not ready")
    assert found["Progressing"].status is is_progressing
    assert found["Available"].status is True


def test_rollout_shows_its_cause() -> None:
    result = complete_result()
    result.workloads[Component.TUNNEL] = daemon_set(updatedNumberScheduled=1)
    causes = {Component.TUNNEL: "the proxy changed"}
    found = {one.type: one for one in installed_conditions(result, Progress(), causes=causes)}
    expected = "the proxy changed: 2 of 3 pods are of an older version"
    assert found[f"{Component.TUNNEL}Progressing"].message == found["Progressing"].message == expected


def test_object_that_is_being_removed_is_named_without_degrading() -> None:
    result = complete_result()
    result.waiting[Component.STATIC].append("Service s is being removed, and is then created again")
    found = {one.type: one for one in installed_conditions(result, Progress())}
    condition = found["CSIStaticResourceControllerDegraded"]
    assert (condition.status, condition.message.split(",")[0]) == (False, "Service s is being removed")


def test_last_known_settings_of_the_cluster_degrade_their_own_condition() -> None:
    conditions = installed_conditions(complete_result(), Progress(), observation_error="Proxy: answered 403")
    degraded = {one.type for one in conditions if one.type.endswith("Degraded") and one.status}
    assert degraded == {"ConfigObservationDegraded", "Degraded"}


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
