import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.efs.directories import Directory, Relation, parse_directory
from kube_efs.model.errors import InvalidValue

NAMES = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=20).filter(
    lambda name: name.isprintable() and name not in {".", ".."}
)
# Few names, so that directories often lie in each other.
NEAR = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map(lambda parts: Directory(tuple(parts)))
PATHS = st.one_of(
    st.text(),
    st.lists(st.sampled_from(["", ".", "..", "a", "\n", "b c", "\x00", "\udc80", "é"])).map("/".join),
    st.lists(st.sampled_from(["", ".", "..", "a", "é"])).map(lambda parts: "/" + "/".join(parts)),
)


@given(st.lists(NAMES, max_size=8))
def test_parsing_what_was_printed_gives_the_same_directory(names: list[str]) -> None:
    directory = Directory(tuple(names))
    assert parse_directory(str(directory)) == directory


@given(PATHS)
def test_an_accepted_path_leads_nowhere_else(path: str) -> None:
    try:
        directory = parse_directory(path)
    except InvalidValue:
        return
    assert str(directory) in {path, path.removesuffix("/")}
    for name in directory.parts:
        assert name not in {"", ".", ".."}
        assert "/" not in name
        assert name.isprintable()


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        pytest.param("/", (), id="the root"),
        pytest.param("/team/data", ("team", "data"), id="two levels"),
        pytest.param("/team/data/", ("team", "data"), id="one slash at the end"),
        pytest.param("/a b/$(rm -rf ~);'\"*", ("a b", "$(rm -rf ~);'\"*"), id="a shell's characters"),
        pytest.param("/-rf/--", ("-rf", "--"), id="what looks like options"),
        pytest.param("/...", ("...",), id="three dots are a name"),
        pytest.param("/" + "é" * 127, ("é" * 127,), id="254 bytes"),
    ],
)
def test_accepted(path: str, parts: tuple[str, ...]) -> None:
    assert parse_directory(path).parts == parts


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        pytest.param("team/data", "is not an absolute path", id="relative"),
        pytest.param("", "is not an absolute path", id="empty"),
        pytest.param(None, "is not an absolute path", id="nothing"),
        pytest.param("//", "has an empty component", id="two slashes"),
        pytest.param("//team", "has an empty component", id="two slashes first"),
        pytest.param("/team//data", "has an empty component", id="two slashes between"),
        pytest.param("/team//", "has an empty component", id="two slashes last"),
        pytest.param("/team/..", "has a . or .. component", id="the parent"),
        pytest.param("/../etc", "has a . or .. component", id="above the root"),
        pytest.param("/./team", "has a . or .. component", id="a dot"),
        pytest.param("/te\nam", "has a control character or slash", id="a newline"),
        pytest.param("/team\x00", "has a control character or slash", id="a zero byte"),
        pytest.param("/te\u202eam", "has a control character or slash", id="text that runs backwards"),
        pytest.param("/te\udcffam", "has a control character or slash", id="a byte that is no UTF-8"),
        pytest.param("/" + "é" * 128, "has a name that is too long", id="256 bytes in a name"),
        pytest.param("/a" * 2048, "is too long", id="4096 bytes"),
    ],
)
def test_refused(path: object, problem: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_directory(path, field="spec.nfs.path")
    error = caught.value
    assert (error.problem, error.field, error.value) == (problem, "spec.nfs.path", path)
    assert error.remedy


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb"])
def test_a_child_stays_below_its_parent(name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Directory(("team",)) / name
    assert caught.value.value == name


@given(NEAR, NEAR)
def test_relation_is_what_the_ancestors_say(one: Directory, other: Directory) -> None:
    relation = one.relation_to(other)
    assert (relation is Relation.SAME) == (one == other)
    assert (relation is Relation.ABOVE) == (one in other.ancestors)
    assert (relation is Relation.BELOW) == (other in one.ancestors)


@given(NEAR, NEAR)
def test_relation_seen_from_the_other_is_the_opposite(one: Directory, other: Directory) -> None:
    opposite = {Relation.ABOVE: Relation.BELOW, Relation.BELOW: Relation.ABOVE}
    relation = one.relation_to(other)
    assert other.relation_to(one) is opposite.get(relation, relation)


@given(NEAR, st.lists(NAMES, min_size=1, max_size=4))
def test_a_directory_is_above_all_that_begins_with_it(top: Directory, names: list[str]) -> None:
    assert top.relation_to(Directory((*top.parts, *names))) is Relation.ABOVE


def test_a_name_that_begins_alike_is_apart() -> None:
    assert parse_directory("/data2").relation_to(parse_directory("/data")) is Relation.APART


def test_ancestors_begin_with_the_root_and_end_above_the_directory() -> None:
    assert list(map(str, parse_directory("/a/b").ancestors)) == ["/", "/a"]
    assert Directory().ancestors == ()
    assert Directory().is_root
    assert not parse_directory("/a").is_root
