from typing import Any

import pytest

from kube_efs.operator.forms.go_templates import (
    Context,
    Expression,
    Lines,
    Override,
    conditional,
    write_object,
)

CONTEXT = Context(
    {
        "name": Expression("$.Release.Name"),
        "region": Expression("$.Values.region", when="$.Values.region"),
        "user": Expression("65532", when="$.Values.user"),
        "csi": Expression("$.Values.csi"),
        "folder": "/var/lib",
    }
)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        pytest.param({"a": "b"}, 'a: "b"\n', id="text is quoted"),
        pytest.param(
            {"a": True, "b": 1, "c": None}, "a: true\nb: 1\nc: null\n", id="other values are not quoted"
        ),
        pytest.param({"a": {}, "b": []}, "a: {}\nb: []\n", id="empty values are kept"),
        pytest.param({"a": "{name}"}, "a: {{ $.Release.Name | toJson }}\n", id="placeholder"),
        pytest.param(
            {"a": "100%:{name}"},
            'a: {{ printf "100%%:%v" ($.Release.Name) | toJson }}\n',
            id="placeholder in a text with a percent sign",
        ),
        pytest.param({"a": "{folder}/x"}, 'a: "/var/lib/x"\n', id="constant is written"),
        pytest.param({"a": "{{ $labels.x }}"}, 'a: "{{ "{{" }} $labels.x }}"\n', id="braces of a text"),
        pytest.param(
            {"a": "{user}", "b": "{user}", "c": 1},
            "{{- if $.Values.user }}\na: 65532\nb: 65532\n{{- end }}\nc: 1\n",
            id="two entries on one condition are wrapped once",
        ),
        pytest.param(
            {"a": {"$if": "csi", "b": "{region}"}},
            "{{- if $.Values.csi }}\na:\n  {{- if $.Values.region }}\n  b: {{ $.Values.region | toJson }}\n"
            "  {{- end }}\n{{- end }}\n",
            id="one condition in another",
        ),
        pytest.param(
            {"a": [{"$if": "region", "b": "{region}"}]},
            "{{- if $.Values.region }}\na:\n- b: {{ $.Values.region | toJson }}\n{{- end }}\n",
            id="empty list is omitted",
        ),
        pytest.param(
            {"a": [{"$if": "region", "b": 1}, {"$if": "csi", "b": 2}]},
            "{{- if or ($.Values.region) ($.Values.csi) }}\na:\n"
            "{{- if $.Values.region }}\n- b: 1\n{{- end }}\n"
            "{{- if $.Values.csi }}\n- b: 2\n{{- end }}\n{{- end }}\n",
            id="list exists if any item does",
        ),
        pytest.param(
            {"a": Override("$.Values.a", when="$.Values.a", usual={"b": "{region}"}), "c": 1},
            "{{- if $.Values.a }}\na: {{ $.Values.a | toJson }}\n{{- else }}\na:\n"
            "  {{- if $.Values.region }}\n  b: {{ $.Values.region | toJson }}\n  {{- end }}\n{{- end }}\n"
            "c: 1\n",
            id="value instead of the usual one",
        ),
        pytest.param(
            {"a": ["x", {"b": {"c": "d"}, "e": [1]}]},
            'a:\n- "x"\n- b:\n    c: "d"\n  e:\n  - 1\n',
            id="mappings and lists in a list",
        ),
        pytest.param({"a": [Lines(("- 1", "- 2"))]}, "a:\n- 1\n- 2\n", id="lines are written as they are"),
    ],
)
def test_object_is_written_as_a_template(node: Any, text: str) -> None:
    assert write_object(node, CONTEXT) == text


def test_text_becomes_conditional() -> None:
    assert conditional(None, "a\n") == "a\n"
    assert conditional("$.Values.csi", "a\n") == "{{- if $.Values.csi }}\na\n{{- end }}\n"
