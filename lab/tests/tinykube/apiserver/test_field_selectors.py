from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.objects.field_selectors import parse_field_selector
from tinykube.objects.selectors import SelectorInvalid

POD = {
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running"},
}
EVENT = {
    "metadata": {"name": "e1", "namespace": "shop"},
    "involvedObject": {"kind": "PersistentVolumeClaim", "name": "data", "uid": "u1"},
    "reason": "ProvisioningFailed",
    "type": "Warning",
    "source": {"component": "kube-efs"},
}


@pytest.mark.parametrize(
    ("text", "group", "kind", "json_object", "selected"),
    [
        pytest.param("", "", "Pod", POD, True, id="nothing asked"),
        pytest.param("metadata.name=web", "", "Pod", POD, True, id="name"),
        pytest.param("metadata.name==db", "", "Pod", POD, False, id="other name"),
        pytest.param("status.phase!=Running", "", "Pod", POD, False, id="not equal"),
        pytest.param("spec.nodeName=n1,status.phase=Running", "", "Pod", POD, True, id="two fields"),
        pytest.param("spec.host=n1", "", "Pod", POD, True, id="the old name of spec.nodeName"),
        pytest.param("spec.nodeName=", "", "Pod", {"spec": {}}, True, id="missing is the empty value"),
        pytest.param("spec.hostNetwork=false", "", "Pod", POD, True, id="missing flag is false"),
        pytest.param(
            "spec.unschedulable=true", "", "Node", {"spec": {"unschedulable": True}}, True, id="flag"
        ),
        pytest.param(
            "involvedObject.kind=PersistentVolumeClaim,involvedObject.name=data,reason=ProvisioningFailed",
            "",
            "Event",
            EVENT,
            True,
            id="as kubectl describe asks for events",
        ),
        pytest.param("source=kube-efs", "", "Event", EVENT, True, id="source of an event"),
        pytest.param("type!=Warning", "", "Event", EVENT, False, id="type of an event"),
        pytest.param(",metadata.name=web,", "", "Pod", POD, True, id="empty terms are passed over"),
    ],
)
def test_selects(text: str, group: str, kind: str, json_object: dict[str, Any], selected: bool) -> None:
    assert parse_field_selector(text, group=group, kind=kind).matches(json_object) is selected


def test_a_definition_may_add_fields() -> None:
    selector = parse_field_selector(
        "spec.colour=red", group="example.com", kind="Car", selectable_fields=[".spec.colour"]
    )
    assert selector.matches({"spec": {"colour": "red"}})
    assert not selector.matches({"spec": {"colour": "blue"}})


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        pytest.param("name", "Pod", "invalid selector: 'name'; can't understand 'name'", id="no operator"),
        pytest.param("spec.x=1", "Pod", "field label not supported: spec.x", id="field of no pod"),
        pytest.param(
            "metadata.namespace=a", "Node", "field label not supported: metadata.namespace", id="node"
        ),
        pytest.param(
            "status.phase=Bound",
            "PersistentVolumeClaim",
            '"status.phase" is not a known field selector: only "metadata.name", "metadata.namespace"',
            id="kind that has only metadata",
        ),
        pytest.param(
            "metadata.name=a=b",
            "Pod",
            "invalid field selector: unescaped character in value: 61",
            id="equals sign in a value",
        ),
        pytest.param(
            r"metadata.name=a\x",
            "Pod",
            r"invalid field selector: invalid escape sequence: \x",
            id="unknown escape",
        ),
        pytest.param(
            "metadata.name=a\\",
            "Pod",
            "invalid field selector: invalid escape sequence: \\",
            id="escape at the end",
        ),
    ],
)
def test_refuses_with_kubernetes_words(text: str, kind: str, problem: str) -> None:
    with pytest.raises(SelectorInvalid) as refusal:
        parse_field_selector(text, kind=kind)
    assert refusal.value.problem == problem


@given(st.text())
def test_any_escaped_value_finds_its_object(value: str) -> None:
    escaped = value.replace("\\", r"\\").replace(",", r"\,").replace("=", r"\=")
    selector = parse_field_selector(f"metadata.name={escaped}", kind="Pod")
    assert selector.matches({"metadata": {"name": value}})
