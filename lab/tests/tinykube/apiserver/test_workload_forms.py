"""StatefulSets: their selector and their scale."""

import json
from typing import Any

import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.api.handlers import patch_object
from tinykube.api.requests import parse_patch
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
STATEFUL_SET: Json = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "web"},
    "spec": {
        "serviceName": "web",
        "selector": {"matchLabels": {"app": "web"}},
        "template": TEMPLATE,
        "volumeClaimTemplates": [{"metadata": {"name": "efs"}, "spec": {}}],
    },
}


def test_selector_must_select_the_template(inside: Inside) -> None:
    spec = {**STATEFUL_SET["spec"], "selector": {"matchLabels": {"app": "other"}}}
    with refused(422, "spec.template.metadata.labels"):
        inside.create("statefulsets", {**STATEFUL_SET, "spec": spec})


def test_stateful_set_needs_a_selector(inside: Inside) -> None:
    spec = {key: value for key, value in STATEFUL_SET["spec"].items() if key != "selector"}
    with refused(422, "spec.selector: is required"):
        inside.create("statefulsets", {**STATEFUL_SET, "spec": spec})


def test_scale_shows_the_replicas_and_whose_they_are(inside: Inside) -> None:
    made = inside.create("statefulsets", STATEFUL_SET)
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
    inside.create("statefulsets", STATEFUL_SET)
    resource, key = inside.type_of("statefulsets"), inside.key("statefulsets", "web")
    parsed = parse_patch(json.dumps(patch).encode(), f"application/{media_type}+json", custom=False)
    patch_object(inside.service, resource, key, parsed, WriteOptions(subresource="scale"))
    found = inside.get("statefulsets", "web")
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (5, 2)
    assert found["spec"]["serviceName"] == "web"


def test_scale_of_another_version_is_refused(inside: Inside) -> None:
    inside.create("statefulsets", STATEFUL_SET)
    resource, key = inside.type_of("statefulsets"), inside.key("statefulsets", "web")
    scale = {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 2}}
    with refused(409, "the object has been modified"):
        inside.service.change(resource, key, scaling(lambda _: scale), WriteOptions(subresource="scale"))
