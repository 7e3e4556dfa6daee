import contextlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tinykube.objects.selectors import (
    SelectorInvalid,
    parse_label_selector,
    structured_label_selector,
)

LABELS = {"app": "web", "tier": "", "example.com/zone": "b", "weight": "12"}


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
        pytest.param("weight>11,weight<13", True, id="between two numbers"),
        pytest.param("weight>12", False, id="greater than is strict"),
        pytest.param("app>1", False, id="greater than, but the label is no number"),
        pytest.param("missing<1", False, id="less than, but the key is missing"),
        pytest.param("example.com/zone=b,app", True, id="qualified key and a second requirement"),
        pytest.param("example.com/zone=b,app=db", False, id="second requirement fails"),
        pytest.param("notin notin (in)", True, id="operators' names are keys and values too"),
    ],
)
def test_selects(text: str, selected: bool) -> None:
    assert parse_label_selector(text).matches(LABELS) is selected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            "=x", "found '=', expected: !, identifier, or 'end of string'", id="begins with an operator"
        ),
        pytest.param("a,", "found '', expected: identifier after ','", id="ends with a comma"),
        pytest.param("a=b=c", "found '=', expected: ',' or 'end of string'", id="two operators"),
        pytest.param(
            "a b",
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            id="two words",
        ),
        pytest.param(
            "a in b", "unable to parse requirement: found 'b' expected: '('", id="list without parentheses"
        ),
        pytest.param(
            "a in (b", "unable to parse requirement: found '', expected: ',' or ')'", id="list left open"
        ),
        pytest.param(
            "!!a", "unable to parse requirement: found '!', expected: identifier", id="negated twice"
        ),
        pytest.param(
            "a>x",
            'unable to parse requirement: values[0]: Invalid value: "x": '
            "for 'Gt', 'Lt' operators, the value must be an integer",
            id="greater than a word",
        ),
    ],
)
def test_refuses_with_kubernetes_words(text: str, problem: str) -> None:
    with pytest.raises(SelectorInvalid) as refusal:
        parse_label_selector(text)
    assert refusal.value.problem == problem


@pytest.mark.parametrize(
    ("text", "beginning"),
    [
        pytest.param(
            "-a",
            'unable to parse requirement: <nil>: Invalid value: "-a": name part must consist of alphanumeric',
            id="key begins with a dash",
        ),
        pytest.param(
            "a/b/c",
            'unable to parse requirement: <nil>: Invalid value: "a/b/c": a valid label key must consist of',
            id="key with two slashes",
        ),
        pytest.param(
            "UP/b",
            'unable to parse requirement: <nil>: Invalid value: "UP/b": prefix part a lowercase RFC 1123',
            id="key with a prefix in capitals",
        ),
        pytest.param(
            f"{'k' * 64}",
            f'unable to parse requirement: <nil>: Invalid value: "{"k" * 64}": '
            "name part must be no more than 63 bytes",
            id="long key",
        ),
        pytest.param(
            "a=b/c",
            'unable to parse requirement: values[0][a]: Invalid value: "b/c": a valid label must be an empty',
            id="value with a slash",
        ),
    ],
)
def test_refuses_what_no_label_can_be(text: str, beginning: str) -> None:
    with pytest.raises(SelectorInvalid) as refusal:
        parse_label_selector(text)
    assert refusal.value.problem.startswith(beginning)


@given(st.text(alphabet="ab/.-=!(),<> in\tnot\x00é"))
@example("a\x85b")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(SelectorInvalid):
        parse_label_selector(text).matches(LABELS)


WORDS = st.from_regex(r"[a-z]([a-z0-9.-]{0,4}[a-z0-9])?", fullmatch=True)


@given(key=WORDS, values=st.sets(WORDS, min_size=1), labels=st.dictionaries(WORDS, WORDS))
def test_in_and_notin_divide_all_objects(key: str, values: set[str], labels: dict[str, str]) -> None:
    listed = ",".join(values)
    inside = parse_label_selector(f"{key} in ({listed})").matches(labels)
    outside = parse_label_selector(f"{key} notin ({listed})").matches(labels)
    assert inside is not outside
    assert inside is (labels.get(key) in values)


@given(labels=st.dictionaries(WORDS, WORDS), more=st.dictionaries(WORDS, WORDS))
def test_an_object_is_selected_by_its_own_labels(labels: dict[str, str], more: dict[str, str]) -> None:
    selector = parse_label_selector(",".join(f"{key}={value}" for key, value in labels.items()))
    assert selector == structured_label_selector({"matchLabels": labels})
    assert selector.matches({**more, **labels})


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        pytest.param({}, True, id="empty selects everything"),
        pytest.param({"matchLabels": {"app": "web"}}, True, id="labels"),
        pytest.param({"matchLabels": {"app": "db"}}, False, id="other label"),
        pytest.param(
            {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "web"]}]}, True, id="in"
        ),
        pytest.param(
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False, id="not in"
        ),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True, id="exists"),
        pytest.param(
            {
                "matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "app", "operator": "DoesNotExist"}],
            },
            False,
            id="labels and expressions must both hold",
        ),
    ],
)
def test_structured_selects(selector: dict[str, Any], selected: bool) -> None:
    assert structured_label_selector(selector).matches(LABELS) is selected


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        pytest.param(
            {"key": "a", "operator": "Near"}, '"Near" is not a valid label selector operator', id="operator"
        ),
        pytest.param(
            {"key": "a", "operator": "In"},
            "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
            id="no values",
        ),
        pytest.param(
            {"key": "a", "operator": "Exists", "values": ["b"]},
            "values: Invalid value: values set must be empty for exists and does not exist",
            id="values where none belong",
        ),
    ],
)
def test_structured_refuses(expression: dict[str, Any], problem: str) -> None:
    with pytest.raises(SelectorInvalid) as refusal:
        structured_label_selector({"matchExpressions": [expression]})
    assert refusal.value.problem == problem
