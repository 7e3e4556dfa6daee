"""When a rollout was complete once."""

import pytest

from kube_efs.operator.injection import SPEC_HASH
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.progress import is_stable, record_of_rollout


def workload(kind: str, generation: int, **annotations: str) -> Manifest:
    return {"kind": kind, "metadata": {"generation": generation, "annotations": annotations}}


def test_record_of_a_deployment_outlasts_the_generation_that_it_causes() -> None:
    before = workload("Deployment", 3, **{SPEC_HASH: "a"})
    record = record_of_rollout(before)
    # The API server increases the generation of a Deployment also when an annotation changes.
    assert is_stable(workload("Deployment", 4, **{SPEC_HASH: "a"}, **record))
    assert not is_stable(workload("Deployment", 4, **{SPEC_HASH: "b"}, **record))


def test_record_of_a_daemon_set_is_about_one_generation() -> None:
    record = record_of_rollout(workload("DaemonSet", 3))
    assert is_stable(workload("DaemonSet", 3, **record))
    assert not is_stable(workload("DaemonSet", 4, **record))


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_workload_without_a_record_is_not_stable(kind: str) -> None:
    assert not is_stable(workload(kind, 1, **{SPEC_HASH: "a"}))
