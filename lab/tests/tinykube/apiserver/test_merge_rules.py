import pytest

from tinykube.patch.merge_rules import DEFAULT, ListType, rules_for, rules_from_schema


@pytest.mark.parametrize(
    ("group", "kind", "path", "keys"),
    [
        ("", "Pod", "spec.containers", ("name",)),
        ("", "Pod", "spec.containers[].ports", ("containerPort", "protocol")),
        ("", "Pod", "spec.containers[].volumeMounts", ("mountPath",)),
        ("", "Service", "spec.ports", ("port", "protocol")),
        ("", "PersistentVolumeClaim", "status.conditions", ("type",)),
        ("apps", "DaemonSet", "spec.template.spec.volumes", ("name",)),
        ("storage.k8s.io", "StorageClass", "metadata.ownerReferences", ("uid",)),
        ("example.com", "Anything", "metadata.ownerReferences", ("uid",)),
    ],
)
def test_keyed_lists(group: str, kind: str, path: str, keys: tuple[str, ...]) -> None:
    rules = rules_for(group, kind)
    for part in path.split("."):
        rules = rules.child(part.removesuffix("[]"))
        if part.endswith("[]"):
            rules = rules.element
    assert (rules.list_type, rules.keys, rules.merge_key) == (ListType.MAP, keys, keys[0])


def test_what_no_rule_speaks_of_is_merged_by_key_or_replaced() -> None:
    rules = rules_for("", "PersistentVolume").child("spec").child("accessModes")
    assert rules == DEFAULT
    assert not rules.atomic
    assert rules.list_type is ListType.ATOMIC


def test_rules_of_a_custom_resource_come_from_its_schema() -> None:
    rules = rules_from_schema(
        {
            "type": "object",
            "properties": {
                "metadata": {"type": "object"},
                "spec": {
                    "type": "object",
                    "properties": {
                        "selector": {"type": "object", "x-kubernetes-map-type": "atomic"},
                        "zones": {
                            "type": "array",
                            "x-kubernetes-list-type": "set",
                            "items": {"type": "string"},
                        },
                        "ports": {
                            "type": "array",
                            "x-kubernetes-list-type": "map",
                            "x-kubernetes-list-map-keys": ["port", "protocol"],
                            "items": {
                                "type": "object",
                                "properties": {
                                    "port": {"type": "integer"},
                                    "protocol": {"type": "string", "default": "TCP"},
                                },
                            },
                        },
                        "pools": {
                            "type": "object",
                            "additionalProperties": {
                                "type": "object",
                                "properties": {"one": {"type": "object", "x-kubernetes-map-type": "atomic"}},
                            },
                        },
                    },
                },
            },
        }
    )
    spec = rules.child("spec")
    assert spec.child("selector").atomic
    assert spec.child("zones").list_type is ListType.SET
    assert spec.child("ports").keys == ("port", "protocol")
    assert dict(spec.child("ports").key_defaults) == {"protocol": "TCP"}
    assert spec.child("pools").child("any").child("one").atomic
    assert rules.child("metadata").child("finalizers").list_type is ListType.SET
