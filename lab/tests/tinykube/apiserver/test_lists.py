import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.api.lists import parse_selection
from tinykube.api.requests import Parameters
from tinykube.api.watches import parse_watch_query


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"labelSelector": "a in"}, "is not a label selector"),
        ({"fieldSelector": "data.x=1"}, "cannot be selected by this field"),
    ],
    ids=["labels", "fields"],
)
def test_impossible_lists_are_refused(inside: Inside, query: dict[str, str], text: str) -> None:
    with refused(400, text):
        parse_selection(inside.type_of("configmaps"), "default", "", Parameters(query))


def test_watches_that_replace_lists_are_refused_so_that_clients_list(inside: Inside) -> None:
    parameters = Parameters({"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"})
    selection = parse_selection(inside.type_of("configmaps"), "", "", parameters)
    with refused(422, "sendInitialEvents: is not supported for a watch"):
        parse_watch_query(selection, parameters)


@pytest.mark.parametrize(
    ("text", "flag"), [("true", True), ("1", True), ("", True), ("false", False), ("0", False)]
)
def test_flags_are_true_unless_they_say_no(text: str, flag: bool) -> None:
    assert Parameters({"watch": text}).flag("watch") is flag
    assert Parameters({}).flag("watch") is False
