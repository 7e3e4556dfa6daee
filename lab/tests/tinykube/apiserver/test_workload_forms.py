"""The other forms of workloads: their scale, and StatefulSets of a version of old."""

import json
from typing import Any

import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.api.handlers import patch_object
from tinykube.api.requests import parse_patch
from tinykube.objects.decoding import in_wire_form
from tinykube.objects.service import WriteOptions
from tinykube.objects.subresources import scale_of, scaling
from tinykube.objects.values import Json

TEMPLATE = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {
        "containers": [
            {"name": "web", "image": "none", "volumeMounts": [{"name": "efs", "mountPath": "/efs"}]}
        ]
    },
}
OLD: Json = {
    "apiVersion": "apps/v1beta1",
    "kind": "StatefulSet",
    "metadata": {"name": "web"},
    "spec": {
        "serviceName": "web",
        "template": TEMPLATE,
        "volumeClaimTemplates": [{"metadata": {"name": "efs"}, "spec": {}}],
    },
}


def create_old(inside: Inside, body: Json) -> Json:
    resource = inside.registry.get("apps", "v1beta1", "statefulsets")
    return inside.service.create(resource, "default", body, WriteOptions(manager="tests")).json


def test_old_stateful_set_is_one_of_today(inside: Inside) -> None:
    create_old(inside, OLD)
    found = inside.get("statefulsets", "web")
    assert found["apiVersion"] == "apps/v1"
    assert found["spec"]["selector"] == {"matchLabels": {"app": "web"}}
    assert found["spec"]["replicas"] == 1
    shown = in_wire_form(inside.registry.get("apps", "v1beta1", "statefulsets"), found)
    assert shown == {**found, "apiVersion": "apps/v1beta1"}


def test_old_stateful_set_keeps_the_selector_that_it_has(inside: Inside) -> None:
    spec = {**OLD["spec"], "selector": {"matchLabels": {"app": "other"}}}
    with refused(422, "spec.template.metadata.labels"):
        create_old(inside, {**OLD, "spec": spec})


def test_stateful_set_of_today_needs_a_selector(inside: Inside) -> None:
    with refused(422, "spec.selector: is required"):
        inside.create("statefulsets", {**OLD, "apiVersion": "apps/v1"})


def test_version_of_today_is_preferred(inside: Inside) -> None:
    assert inside.registry.groups()["apps"] == ["v1", "v1beta1"]


def test_scale_shows_the_replicas_and_whose_they_are(inside: Inside) -> None:
    made = create_old(inside, OLD)
    scale = scale_of({**made, "status": {"replicas": 2}})
    assert (scale["apiVersion"], scale["kind"]) == ("autoscaling/v1", "Scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 1}, {"replicas": 2})
    assert scale["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("media_type", "patch"),
    [
        pytest.param("merge-patch", {"spec": {"replicas": 5}}, id="merge"),
        pytest.param("json-patch", [{"op": "replace", "path": "/spec/replicas", "value": 5}], id="JSON"),
    ],
)
def test_scale_can_be_patched(inside: Inside, media_type: str, patch: Any) -> None:
    create_old(inside, OLD)
    resource, key = inside.type_of("statefulsets"), inside.key("statefulsets", "web")
    parsed = parse_patch(json.dumps(patch).encode(), f"application/{media_type}+json", custom=False)
    patch_object(inside.service, resource, key, parsed, WriteOptions(subresource="scale"))
    found = inside.get("statefulsets", "web")
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (5, 2)
    assert found["spec"]["serviceName"] == "web"


def test_scale_of_another_version_is_refused(inside: Inside) -> None:
    create_old(inside, OLD)
    resource, key = inside.type_of("statefulsets"), inside.key("statefulsets", "web")
    scale = {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 2}}
    with refused(409, "the object has been modified"):
        inside.service.change(resource, key, scaling(lambda _: scale), WriteOptions(subresource="scale"))
