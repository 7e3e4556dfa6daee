"""The size of the ConfigMap with the tunnel targets, beside the limit of Kubernetes."""

import pytest
from prometheus_client import CollectorRegistry

from kube_efs.controllers.targets_size import LIMIT_BYTES, TargetsSize
from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.errors import InvalidValue
from kube_efs.telemetry.metrics import ControllerMetrics


class Noting(EventRecorder):
    """Records the reasons of the events."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.messages: list[str] = []

    def publish(
        self, subject: Subject, kind: EventType, reason: str, message: str, *, ends: str = ""
    ) -> None:
        assert (subject.kind, subject.namespace, subject.name, subject.uid, kind) == (
            "ConfigMap",
            "kube-efs",
            "targets",
            "uid",
            EventType.WARNING,
        )
        self.reasons.append(reason)
        self.messages.append(message)


def of(size: int) -> dict[str, str]:
    """Data of that size; a character can need more than a byte."""
    return {"targets.yaml": "é" * (size // 2 - 10), "zones.yaml": "z" * (20 + size % 2)}


def test_targets_are_reported_once_before_they_no_longer_fit_and_once_when_they_do_not() -> None:
    recorder, registry = Noting(), CollectorRegistry()
    size = TargetsSize(recorder, ControllerMetrics(registry), namespace="kube-efs")
    for bytes_now in (100, LIMIT_BYTES * 3 // 4, LIMIT_BYTES * 3 // 4 + 1, LIMIT_BYTES):
        size.check("targets", "uid", of(bytes_now))
        assert registry.get_sample_value("kube_efs_targets_bytes") == bytes_now
    assert recorder.reasons == ["TargetsNearLimit"]
    for _ in range(2):
        with pytest.raises(
            InvalidValue, match=r"ConfigMap: 'targets' needs 1048577 bytes, and 1048576 fit; delete"
        ):
            size.check("targets", "uid", of(LIMIT_BYTES + 1))
    assert recorder.reasons == ["TargetsNearLimit", "TargetsTooLarge"]
    assert "KUBE_EFS_BACKENDS=csi" in recorder.messages[1]
    size.check("targets", "uid", of(100))
    with pytest.raises(InvalidValue):
        size.check("targets", "uid", of(2 * LIMIT_BYTES))
    assert recorder.reasons[2:] == ["TargetsTooLarge"]
