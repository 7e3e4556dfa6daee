"""Evicting a pod, as kube-apiserver does it."""

import pytest
from lab.tests.tinykube.apiserver.inside import Inside

from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.statuses import ApiError
from tinykube.objects.values import Json

_POD: Json = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "main", "image": "any"}]}}


def _evict(inside: Inside, **options: object) -> None:
    key = inside.key("pods", "one")
    inside.service.evict(inside.type_of("pods"), key, DeleteOptions(**options))  # type: ignore[arg-type]


@pytest.fixture
def running(inside: Inside) -> Inside:
    inside.create("pods", {**_POD, "spec": {**_POD["spec"], "nodeName": "node-a"}})
    return inside


def test_the_pod_ends_with_its_grace_and_says_why(running: Inside) -> None:
    _evict(running, grace_period_seconds=20)
    pod = running.get("pods", "one")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 20
    (condition,) = pod["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "EvictionByEvictionAPI")


def test_a_version_that_is_asked_for_is_that_before_the_eviction(running: Inside) -> None:
    version = running.get("pods", "one")["metadata"]["resourceVersion"]
    _evict(running, resource_version=version, grace_period_seconds=0)
    assert not running.exists("pods", "one")


@pytest.mark.parametrize("options", [{"uid": "other"}, {"resource_version": "1"}], ids=["uid", "version"])
def test_another_pod_than_meant_is_left_alone(running: Inside, options: Json) -> None:
    before = running.get("pods", "one")
    with pytest.raises(ApiError) as caught:
        _evict(running, **options)
    assert caught.value.code == 409
    assert running.get("pods", "one") == before


def test_a_trial_changes_nothing(running: Inside) -> None:
    before = running.get("pods", "one")
    _evict(running, dry_run=True)
    assert running.get("pods", "one") == before
