"""Bodies as ``kubectl create`` sends them."""

import pytest

from tinykube.api.protobuf_bodies import parse_protobuf
from tinykube.objects.statuses import ApiError


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    result = b""
    while number > 0x7F:
        result += bytes([number & 0x7F | 0x80])
        number >>= 7
    return result + bytes([number])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def body(api_version: str, kind: str, content: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, api_version) + field(2, kind)) + field(2, content)


_NAMED = field(1, field(1, "one") + field(2, "") + field(3, ""))
_SELECTOR = field(1, field(1, "app") + field(2, "web"))


@pytest.mark.parametrize(
    ("wire", "budget"),
    [
        (field(1, field(1, 0) + field(2, 2) + field(3, "")), {"minAvailable": 2}),
        (field(1, field(1, 0) + field(2, 0) + field(3, "")), {"minAvailable": 0}),
        (field(3, field(1, 1) + field(2, 0) + field(3, "50%")), {"maxUnavailable": "50%"}),
    ],
    ids=["number", "none", "share"],
)
def test_a_number_or_a_share(wire: bytes, budget: dict[str, object]) -> None:
    spec = field(2, wire + field(2, _SELECTOR)) + field(3, b"")
    assert parse_protobuf(body("policy/v1", "PodDisruptionBudget", _NAMED + spec)) == {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "one"},
        "spec": {**budget, "selector": {"matchLabels": {"app": "web"}}},
    }


def test_what_go_writes_though_it_is_not_set_is_left_out() -> None:
    content = _NAMED + field(2, -5) + field(3, 0) + field(4, "") + field(5, "Never")
    found = parse_protobuf(body("scheduling.k8s.io/v1", "PriorityClass", content))
    assert {**found, "metadata": {}} == {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {},
        "value": -5,
        "preemptionPolicy": "Never",
    }


def test_a_deployment_of_no_pods_has_its_zero() -> None:
    container = field(1, "main") + field(2, "any") + field(3, "sleep") + field(3, "1") + field(16, 0)
    template = field(3, field(1, b"") + field(2, field(2, container) + field(3, "") + field(11, 0)))
    spec = field(1, 0) + field(2, _SELECTOR) + template + field(4, field(1, "")) + field(5, 0)
    found = parse_protobuf(body("apps/v1", "Deployment", _NAMED + field(2, spec)))
    assert found["spec"] == {
        "replicas": 0,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {},
            "spec": {"containers": [{"name": "main", "image": "any", "command": ["sleep", "1"]}]},
        },
        "strategy": {},
    }


def test_quantities_are_texts() -> None:
    entry = field(1, field(1, "cpu") + field(2, field(1, "500m")))
    found = parse_protobuf(body("v1", "ResourceQuota", _NAMED + field(2, entry)))
    assert found["spec"] == {"hard": {"cpu": "500m"}}


def test_fields_that_are_not_known_are_refused_rather_than_lost() -> None:
    with pytest.raises(ApiError, match="a field of number 99") as caught:
        parse_protobuf(body("apps/v1", "Deployment", field(99, "more")))
    assert caught.value.code == 415
