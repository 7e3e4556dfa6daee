"""The grammar of --tags, with the examples of the contract."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.csi.access_point_tags import DEFAULT_TAGS, Tag, TagPolicy, parse_tags, split_tags
from kube_efs.model.csi.root_directories import VolumeOrigin
from kube_efs.model.errors import InvalidSetting


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("   ", {}, id="blanks"),
        pytest.param("key:value", {"key": "value"}, id="one"),
        pytest.param(" a:1   b:2 ", {"a": "1", "b": "2"}, id="two, with blanks"),
        pytest.param("key", {"key": ""}, id="no value"),
        pytest.param("key:", {"key": ""}, id="empty value"),
        pytest.param("a:1 a:2", {"a": "2"}, id="last wins"),
        pytest.param(r"first\:key:first\ value", {"first:key": "first value"}, id="escapes"),
        pytest.param(r"first\\value", {"first\\value": ""}, id="escaped backslash"),
        pytest.param(r"a\b:c", {"a\\b": "c"}, id="unknown escape"),
        pytest.param(r"a\\:b", {"a\\": "b"}, id="backslash before a separator"),
        pytest.param(r"a:b\ ", {"a": "b "}, id="escaped blank at the end"),
        pytest.param("ключ:значение", {"ключ": "значение"}, id="another script"),
        pytest.param("Ġ:ĺ", {"Ġ": "ĺ"}, id="code points whose low bytes are separators"),
    ],
)
def test_tag_grammar_is_parsed(text: str, tags: dict[str, str]) -> None:
    assert {tag.key: tag.value for tag in split_tags(text)} == tags


REMEDY = r"; use key:value key:value, with \ before blanks and colons"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a:b:c", "'a:b:c' has a tag with more than one colon", id="three parts"),
        pytest.param(":b", "':b' has a tag without a key", id="no key"),
        pytest.param("a:b \\", r"'a:b \\' ends in a lone backslash", id="lone backslash"),
        pytest.param(
            "k" * 129,
            f"'{'k' * 129}' is longer than 128 characters for a key or 256 for a value",
            id="long key",
        ),
        pytest.param(
            f"k:{'v' * 257}",
            "'k' is longer than 128 characters for a key or 256 for a value",
            id="long value",
        ),
        pytest.param("AWS\\:x:y", "'AWS:x' is a key that AWS reserves", id="key of AWS"),
        pytest.param(
            r"a\b", r"'a\\b' has a character that EFS does not accept in tags, '\\'", id="backslash for EFS"
        ),
        pytest.param(
            "a\tb", r"'a\tb' has a character that EFS does not accept in tags, '\t'", id="control character"
        ),
    ],
)
def test_invalid_tags_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_tags(text)
    assert str(caught.value) == f"--tags: {message}{REMEDY}"


def test_tags_beyond_the_efs_limit_are_refused() -> None:
    most = " ".join(f"k{number}" for number in range(45))
    origin = VolumeOrigin(claim_name="c", claim_namespace="n", volume_name="v")
    policy = TagPolicy(of_driver=parse_tags(most), describes_volume=True)
    assert len(policy.tags(origin, 1)) == 50
    with pytest.raises(InvalidSetting, match="has more than 45 tags"):
        parse_tags(f"{most} one")


def test_default_tag_is_the_only_one_that_the_managed_policy_allows() -> None:
    origin = VolumeOrigin(claim_name="c", claim_namespace="n", volume_name="v")
    assert DEFAULT_TAGS.tags(origin, 1) == (Tag(key="efs.csi.aws.com/cluster", value="true"),)


def test_unknown_claim_metadata_gives_no_tag() -> None:
    assert [tag.key for tag in TagPolicy(describes_volume=True).tags(VolumeOrigin(), 0)] == [
        "efs.csi.aws.com/cluster",
        "efs.csi.aws.com/requested-bytes",
    ]


PARTS = st.text(st.characters(codec="utf-8"), min_size=1)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:").replace(" ", "\\ ")


@given(st.dictionaries(PARTS.filter(lambda key: not key[0].isspace()), PARTS))
def test_any_tags_can_be_escaped(tags: dict[str, str]) -> None:
    text = " ".join(f"{escaped(key)}:{escaped(value)}" for key, value in tags.items())
    assert split_tags(text) == tuple(Tag(key=key, value=value) for key, value in tags.items())


@given(st.text() | st.text(r"ab:\ "))
def test_any_text_is_refused_or_gives_valid_tags(text: str) -> None:
    try:
        tags = parse_tags(text)
    except InvalidSetting:
        return
    assert len(tags) <= 45
    assert all(0 < len(tag.key) <= 128 and len(tag.value) <= 256 for tag in tags)
