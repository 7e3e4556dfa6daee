import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.api.lists import Page, Position, list_page, parse_selection
from tinykube.api.requests import Parameters
from tinykube.api.watches import parse_watch_query
from tinykube.objects.storage import ObjectKey


def page(inside: Inside, **query: str) -> Page:
    parameters = Parameters(query)
    selection = parse_selection(inside.type_of("configmaps"), "default", "", parameters)
    return list_page(inside.store, selection, parameters)


def names(found: Page) -> list[str]:
    return [stored.key.name for stored in found.items]


@pytest.fixture
def five(inside: Inside) -> Inside:
    for number in range(5):
        labels = {"parity": "even" if number % 2 == 0 else "odd"}
        inside.create("configmaps", {"metadata": {"name": f"n{number}", "labels": labels}})
    return inside


def test_pages_continue_after_the_last_name(five: Inside) -> None:
    first = page(five, limit="2")
    assert (names(first), first.metadata["remainingItemCount"]) == (["n0", "n1"], 3)
    five.delete("configmaps", "n3")
    five.create("configmaps", {"metadata": {"name": "n2a"}})
    second = page(five, limit="2", **{"continue": first.metadata["continue"]})
    assert names(second) == ["n2", "n2a"]
    assert second.metadata["resourceVersion"] == first.metadata["resourceVersion"]
    last = page(five, limit="2", **{"continue": second.metadata["continue"]})
    assert (names(last), "continue" in last.metadata) == (["n4"], False)


def test_selected_pages_do_not_claim_to_know_how_many_remain(five: Inside) -> None:
    first = page(five, limit="1", labelSelector="parity=even")
    assert names(first) == ["n0"]
    assert "remainingItemCount" not in first.metadata
    second = page(five, limit="9", labelSelector="parity=even", **{"continue": first.metadata["continue"]})
    assert names(second) == ["n2", "n4"]


def test_a_version_is_the_oldest_that_would_do(five: Inside) -> None:
    version = str(five.store.revision)
    five.delete("configmaps", "n0")
    assert names(page(five, resourceVersion=version)) == ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("query", "code", "text"),
    [
        ({"continue": "!"}, 400, "continue is not a token"),
        ({"limit": "many"}, 400, "limit=many is not a number"),
        ({"labelSelector": "a in"}, 400, "is not a label selector"),
        ({"fieldSelector": "data.x=1"}, 400, "cannot be selected by this field"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_impossible_lists_are_refused(five: Inside, query: dict[str, str], code: int, text: str) -> None:
    with refused(code, text):
        page(five, **query)


def test_watches_that_replace_lists_are_refused_so_that_clients_list(inside: Inside) -> None:
    parameters = Parameters({"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"})
    selection = parse_selection(inside.type_of("configmaps"), "", "", parameters)
    with refused(422, "sendInitialEvents: is not supported for a watch"):
        parse_watch_query(selection, parameters)


def test_positions_survive_their_token() -> None:
    for position in (Position(7, ObjectKey("ns", "a")), Position(8, ObjectKey("", "cluster-wide"))):
        assert Position.parse(position.token()) == position


@pytest.mark.parametrize(
    ("text", "flag"), [("true", True), ("1", True), ("", True), ("false", False), ("0", False)]
)
def test_flags_are_true_unless_they_say_no(text: str, flag: bool) -> None:
    assert Parameters({"watch": text}).flag("watch") is flag
    assert Parameters({}).flag("watch") is False
