import contextlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tinykube.api.lists import Selection
from tinykube.kinds.builtin_types import builtin_types
from tinykube.objects.resources import Registry
from tinykube.objects.selectors import SelectorInvalid, parse_field_selector, parse_label_selector

REGISTRY = Registry(builtin_types())
TYPES = {kind: REGISTRY.get("", "v1", f"{kind.lower()}s") for kind in ("Event", "Pod")}
LABELS = {"app": "web", "tier": "", "example.com/zone": "b"}


def selects(text: str, labels: Mapping[str, str]) -> bool:
    return all(one.holds(labels.get(one.key)) for one in parse_label_selector(text))


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        pytest.param("", True, id="nothing asked"),
        pytest.param("app", True, id="key exists"),
        pytest.param("missing", False, id="key does not exist"),
        pytest.param("!missing", True, id="absence of a key that is absent"),
        pytest.param("!app", False, id="absence of a key that is there"),
        pytest.param("app=web", True, id="equal"),
        pytest.param("app == web", True, id="equal written twice, with spaces"),
        pytest.param("app=db", False, id="equal to another value"),
        pytest.param("tier=", True, id="equal to the empty value"),
        pytest.param("tier=,app", True, id="empty value before a comma"),
        pytest.param("app!=db", True, id="not equal"),
        pytest.param("app!=web", False, id="not equal to its value"),
        pytest.param("missing!=x", True, id="not equal holds for a missing key"),
        pytest.param("app in (db, web)", True, id="one of"),
        pytest.param("missing in (db)", False, id="one of, but the key is missing"),
        pytest.param("app notin (db)", True, id="none of"),
        pytest.param("missing notin (db)", True, id="none of holds for a missing key"),
        pytest.param("tier in ()", True, id="empty list means the empty value"),
        pytest.param("tier in (x,)", True, id="nothing after a comma is the empty value"),
        pytest.param("example.com/zone=b,app in (a,web)", True, id="qualified key and a second requirement"),
        pytest.param("example.com/zone=b,app=db", False, id="second requirement fails"),
        pytest.param("notin notin (in)", True, id="operators' names are keys and values too"),
    ],
)
def test_labels_are_selected(text: str, selected: bool) -> None:
    assert selects(text, LABELS) is selected


@pytest.mark.parametrize(
    "text",
    [
        "=x",
        "a,",
        "a=b=c",
        "a b",
        "a in b",
        "a in (b",
        "!!a",
        "!a=b",
        "-a",
        "a/b/c",
        "UP/b",
        "k" * 64,
        "a=b/c",
    ],
)
def test_what_is_no_label_selector_is_refused(text: str) -> None:
    with pytest.raises(SelectorInvalid, match="labelSelector"):
        parse_label_selector(text)


@given(st.text(alphabet="ab/.-=!(),<> in\tnot\x00é"))
@example("a\x85b")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(SelectorInvalid):
        selects(text, LABELS)


WORDS = st.from_regex(r"[a-z]([a-z0-9.-]{0,4}[a-z0-9])?", fullmatch=True)


@given(key=WORDS, values=st.sets(WORDS, min_size=1), labels=st.dictionaries(WORDS, WORDS))
def test_in_and_notin_divide_all_objects(key: str, values: set[str], labels: dict[str, str]) -> None:
    listed = ",".join(values)
    inside = selects(f"{key} in ({listed})", labels)
    outside = selects(f"{key} notin ({listed})", labels)
    assert inside is not outside
    assert inside is (labels.get(key) in values)


@given(labels=st.dictionaries(WORDS, WORDS), more=st.dictionaries(WORDS, WORDS))
def test_an_object_is_selected_by_its_own_labels(labels: dict[str, str], more: dict[str, str]) -> None:
    assert selects(",".join(f"{key}={value}" for key, value in labels.items()), {**more, **labels})


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
}


@pytest.mark.parametrize(
    ("text", "kind", "json_object", "selected"),
    [
        pytest.param("", "Pod", POD, True, id="nothing asked"),
        pytest.param("metadata.name=web", "Pod", POD, True, id="name"),
        pytest.param("metadata.name==db", "Pod", POD, False, id="other name"),
        pytest.param("status.phase!=Running", "Pod", POD, False, id="not equal"),
        pytest.param("spec.nodeName=n1,status.phase=Running", "Pod", POD, True, id="two fields"),
        pytest.param(
            "spec.nodeName=", "Pod", {"metadata": {}, "spec": {}}, True, id="missing is the empty value"
        ),
        pytest.param(
            "involvedObject.kind=PersistentVolumeClaim,involvedObject.name=data,reason=ProvisioningFailed",
            "Event",
            EVENT,
            True,
            id="as kubectl describe asks for events",
        ),
        pytest.param("type!=Warning", "Event", EVENT, False, id="type of an event"),
        pytest.param(",metadata.name=web,", "Pod", POD, True, id="empty terms are passed over"),
    ],
)
def test_fields_are_selected(text: str, kind: str, json_object: dict[str, Any], selected: bool) -> None:
    selection = Selection(resource=TYPES[kind], fields=parse_field_selector(text, "", kind))
    assert selection.includes(json_object) is selected


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param("name", "Pod", id="no operator"),
        pytest.param("spec.x=1", "Pod", id="field of no pod"),
        pytest.param("status.phase=Bound", "PersistentVolumeClaim", id="kind that has only metadata"),
        pytest.param("metadata.name=a=b", "Pod", id="equals sign in a value"),
    ],
)
def test_other_fields_are_refused(text: str, kind: str) -> None:
    with pytest.raises(SelectorInvalid, match="fieldSelector"):
        parse_field_selector(text, "", kind)
