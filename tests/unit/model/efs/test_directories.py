import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.strategies import file_names

from kube_efs.model.efs.directories import Directory, Relation, parse_directory
from kube_efs.model.errors import InvalidValue

# Few names, so that directories often lie in each other.
NEAR = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map(lambda parts: Directory(tuple(parts)))
PATHS = st.one_of(
    st.text(),
    st.lists(st.sampled_from(["", ".", "..", "a", "\n", "b c", "\x00", "\udc80", "é"])).map("/".join),
    st.lists(st.sampled_from(["", ".", "..", "a", "é"])).map(lambda parts: "/" + "/".join(parts)),
)


@given(st.lists(file_names(max_size=20), max_size=8))
def test_printed_directory_parses_to_the_same_value(names: list[str]) -> None:
    directory = Directory(tuple(names))
    assert parse_directory(str(directory)) == directory


@given(PATHS)
def test_accepted_path_is_canonical(path: str) -> None:
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
        pytest.param("/", (), id="root"),
        pytest.param("/team/data", ("team", "data"), id="two levels"),
        pytest.param("/team/data/", ("team", "data"), id="trailing slash"),
        pytest.param("/a b/$(rm -rf ~);'\"*", ("a b", "$(rm -rf ~);'\"*"), id="shell characters"),
        pytest.param("/-rf/--", ("-rf", "--"), id="text like options"),
        pytest.param("/...", ("...",), id="three dots"),
        pytest.param("/" + "é" * 127, ("é" * 127,), id="254 bytes"),
    ],
)
def test_valid_path_is_parsed(path: str, parts: tuple[str, ...]) -> None:
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
        pytest.param("/team/..", "has a . or .. component", id="parent"),
        pytest.param("/../etc", "has a . or .. component", id="above the root"),
        pytest.param("/./team", "has a . or .. component", id="dot"),
        pytest.param("/te\nam", "has a control character or slash", id="newline"),
        pytest.param("/team\x00", "has a control character or slash", id="NUL byte"),
        pytest.param("/te\u202eam", "has a control character or slash", id="right-to-left override"),
        pytest.param("/te\udcffam", "has a control character or slash", id="byte that is not UTF-8"),
        pytest.param("/" + "é" * 128, "has a name that is too long", id="256 bytes in a name"),
        pytest.param("/a" * 2048, "is too long", id="4096 bytes"),
    ],
)
def test_invalid_path_is_refused(path: object, problem: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_directory(path, field="spec.nfs.path")
    error = caught.value
    assert (error.problem, error.field, error.value) == (problem, "spec.nfs.path", path)
    assert error.remedy


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb"])
def test_child_is_below_its_parent(name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Directory(("team",)) / name
    assert caught.value.value == name


@given(NEAR, NEAR)
def test_relation_agrees_with_the_ancestors(one: Directory, other: Directory) -> None:
    relation = one.relation_to(other)
    assert (relation is Relation.SAME) == (one == other)
    assert (relation is Relation.ABOVE) == (one in other.ancestors)
    assert (relation is Relation.BELOW) == (other in one.ancestors)


@given(NEAR, NEAR)
def test_relation_is_reversed_from_the_other_side(one: Directory, other: Directory) -> None:
    opposite = {Relation.ABOVE: Relation.BELOW, Relation.BELOW: Relation.ABOVE}
    relation = one.relation_to(other)
    assert other.relation_to(one) is opposite.get(relation, relation)


@given(NEAR, st.lists(file_names(max_size=20), min_size=1, max_size=4))
def test_directory_is_above_paths_that_begin_with_it(top: Directory, names: list[str]) -> None:
    assert top.relation_to(Directory((*top.parts, *names))) is Relation.ABOVE


def test_names_with_a_common_prefix_are_unrelated() -> None:
    assert parse_directory("/data2").relation_to(parse_directory("/data")) is Relation.APART


def test_ancestors_go_from_the_root_to_the_parent() -> None:
    assert list(map(str, parse_directory("/a/b").ancestors)) == ["/", "/a"]
    assert Directory().ancestors == ()
    assert Directory().is_root
    assert not parse_directory("/a").is_root
