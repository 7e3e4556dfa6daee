"""The StorageClass parameters of efs-provisioner: valid values, and the errors for invalid ones."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.claims import StorageClass
from kube_efs.model.directory_classes import DirectoryClass, class_warnings, parse_class
from kube_efs.model.errors import ClaimRefused
from kube_efs.model.gids import GidRange

DEFAULT = GidRange(minimum=2000, maximum=2147483647)
SLOW = GidRange(minimum=40000, maximum=50000)
TRUE = ["1", "t", "T", "TRUE", "true", "True"]
FALSE = ["0", "f", "F", "FALSE", "false", "False"]


def slow(parameters: Mapping[str, str]) -> StorageClass:
    return StorageClass(name="slow", provisioner="example.com/aws-efs", parameters=parameters)


# --- what is taken


@pytest.mark.parametrize(
    ("parameters", "gids"),
    [
        pytest.param({}, DEFAULT, id="nothing"),
        pytest.param(
            {"gidMin": "40000", "gidMax": "50000", "gidAllocate": "true"}, SLOW, id="class of the README"
        ),
        pytest.param({"gidMin": "40000"}, GidRange(minimum=40000, maximum=2147483647), id="minimum only"),
        pytest.param({"gidMax": "50000"}, GidRange(minimum=2000, maximum=50000), id="maximum only"),
        pytest.param({"GIDMIN": "40000", "gidmax": "50000", "GidAllocate": "T"}, SLOW, id="other case"),
        pytest.param({"gidMin": "+40000", "gidMax": "+0050000"}, SLOW, id="plus signs and leading zeros"),
        pytest.param({"gidMin": "2000", "gidMax": "2147483647"}, DEFAULT, id="defaults themselves"),
        pytest.param({"gidMin": "3000", "gidMax": "3000"}, GidRange(minimum=3000, maximum=3000), id="one id"),
        pytest.param({"gidMax": "2000"}, GidRange(minimum=2000, maximum=2000), id="lowest id only"),
        pytest.param(
            {"gidMin": "2147483647"},
            GidRange(minimum=2147483647, maximum=2147483647),
            id="highest id only",
        ),
        pytest.param({"gidMin": "40000", "gidMax": "50000", "archive": "x"}, SLOW, id="unknown parameter"),
        pytest.param({"gidAllocate": "false"}, None, id="no allocation"),
        pytest.param(
            {"gidAllocate": "false", "gidMin": "x", "gidMax": "-1"},
            None,
            id="no allocation and invalid limits",
        ),
        pytest.param(
            {"gidAllocate": "false", "gidMin": "9000", "gidMax": "8000"},
            None,
            id="no allocation and a reversed range",
        ),
    ],
)
def test_class_has_the_gid_range_of_its_parameters(
    parameters: Mapping[str, str], gids: GidRange | None
) -> None:
    assert parse_class(slow(parameters)) == DirectoryClass(gids=gids, tls=False)


@pytest.mark.parametrize("text", TRUE)
def test_go_spellings_of_true_are_accepted(text: str) -> None:
    taken = parse_class(slow({"gidAllocate": text, "tls": text}))
    assert taken == DirectoryClass(gids=DEFAULT, tls=True)


@pytest.mark.parametrize("text", FALSE)
def test_go_spellings_of_false_are_accepted(text: str) -> None:
    assert parse_class(slow({"gidAllocate": text, "TLS": text})) == DirectoryClass(gids=None, tls=False)


# --- what is refused


@pytest.mark.parametrize("parameter", ["gidAllocate", "tls"])
@pytest.mark.parametrize("text", ["yes", "no", "tRUE", "on", "true ", "2"])
def test_invalid_boolean_is_refused(parameter: str, text: str) -> None:
    refused(
        {parameter: text},
        field=f"StorageClass slow parameters.{parameter}",
        value=text,
        text=f"{text!r} is neither true nor false; create the class again with true or false",
    )


@pytest.mark.parametrize("parameter", ["gidAllocate", "tls"])
def test_empty_boolean_is_refused(parameter: str) -> None:
    refused(
        {parameter: ""},
        field=f"StorageClass slow parameters.{parameter}",
        value="",
        text="is neither true nor false; create the class again with true or false",
    )


@pytest.mark.parametrize("parameter", ["gidMin", "gidMax"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("many", id="word"),
        pytest.param(" 3000", id="leading blank"),
        pytest.param("3000 ", id="trailing blank"),
        pytest.param("3000\n", id="trailing newline"),
        pytest.param("3_000", id="underscore"),
        pytest.param("٣٠٠٠", id="digits of another script"),
        pytest.param("0x1000", id="hexadecimal"),
        pytest.param("3e3", id="exponent"),
        pytest.param("3000.0", id="fraction"),
        pytest.param("+", id="sign only"),
        pytest.param("++3000", id="two signs"),
        pytest.param("-1", id="negative"),
        pytest.param("-3000", id="large negative"),
        pytest.param("0", id="zero"),
        pytest.param("1999", id="one too low"),
        pytest.param("2147483648", id="one too high"),
        pytest.param("4294967296", id="33 bits"),
        pytest.param("99999999999999999999", id="more than 64 bits"),
    ],
)
def test_invalid_group_id_is_refused(parameter: str, text: str) -> None:
    refused(
        {parameter: text},
        field=f"StorageClass slow parameters.{parameter}",
        value=text,
        text=f"{text!r} is not a valid group ID; "
        "create the class again with a whole number from 2000 to 2147483647",
    )


@pytest.mark.parametrize("parameter", ["gidMin", "gidMax"])
def test_empty_group_id_is_refused(parameter: str) -> None:
    refused(
        {parameter: ""},
        field=f"StorageClass slow parameters.{parameter}",
        value="",
        text="is not a valid group ID; create the class again with a whole number from 2000 to 2147483647",
    )


def test_group_id_with_too_many_digits_for_python_is_refused() -> None:
    with pytest.raises(ClaimRefused, match="is not a valid group ID") as caught:
        parse_class(slow({"gidMin": "9" * 10_000}))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("minimum", "maximum"), [("40000", "39999"), ("50000", "40000"), ("2147483647", "2000")]
)
def test_reversed_range_is_refused_with_both_limits(minimum: str, maximum: str) -> None:
    refused(
        {"gidMin": minimum, "gidMax": maximum},
        field="StorageClass slow parameters.gidMax",
        value=maximum,
        text=f"'{maximum}' is below gidMin, '{minimum}'; create the class again with gidMin at most gidMax",
    )


@pytest.mark.parametrize(
    ("parameters", "first", "second"),
    [
        ({"gidMin": "3000", "GIDMIN": "4000"}, "gidMin", "GIDMIN"),
        ({"gidMax": "3000", "gidmax": "3000"}, "gidMax", "gidmax"),
        ({"gidAllocate": "false", "gidallocate": "false"}, "gidAllocate", "gidallocate"),
        ({"gidAllocate": "false", "gidMin": "3000", "gidmin": "3000"}, "gidMin", "gidmin"),
        ({"tls": "true", "TLS": "false"}, "tls", "TLS"),
        ({"archive": "1", "Archive": "1"}, "archive", "Archive"),
    ],
    ids=["the minimum", "the maximum", "the allocation", "what has no effect", "tls", "an unknown one"],
)
def test_duplicate_parameter_is_refused(parameters: Mapping[str, str], first: str, second: str) -> None:
    refused(
        parameters,
        field="StorageClass slow parameters",
        value=second,
        text=f"{second!r} is the same parameter as {first!r}; create the class again with one of them",
    )


def refused(parameters: Mapping[str, str], *, field: str, value: str, text: str) -> None:
    with pytest.raises(ClaimRefused) as caught:
        parse_class(slow(parameters))
    assert str(caught.value) == f"{field}: {text}"
    assert (caught.value.field, caught.value.value) == (field, value)


# --- any text at all


def gid_of(text: str) -> int | None:
    """The value of a limit as efs-provisioner documents it: signed 32 bits, at least 2000."""
    digits = text[1:] if text.startswith(("+", "-")) else text
    if not digits or any(digit not in "0123456789" for digit in digits):
        return None
    number = int(digits) * (-1 if text.startswith("-") else 1)
    return number if 2000 <= number < 2**31 else None


TEXTS = st.one_of(
    st.text(),
    st.text(alphabet="+-_ 0129٣"),
    st.integers(1990, 2010).map(str),
    st.integers(2**31 - 5, 2**31 + 5).map(str),
    st.integers().map(lambda number: f"{number:+012d}"),
)


@given(TEXTS, TEXTS)
def test_gid_ranges_match_the_older_system(low: str, high: str) -> None:
    minimum, maximum = gid_of(low), gid_of(high)
    parameters = slow({"gidMin": low, "gidMax": high})
    if minimum is None or maximum is None or maximum < minimum:
        with pytest.raises(ClaimRefused):
            parse_class(parameters)
    else:
        assert parse_class(parameters).gids == GidRange(minimum=minimum, maximum=maximum)


@given(st.text())
def test_booleans_match_the_older_system(text: str) -> None:
    try:
        taken = parse_class(slow({"gidAllocate": text}))
    except ClaimRefused:
        assert text not in TRUE + FALSE
    else:
        assert text in (TRUE if taken.gids else FALSE)


# --- what is served, but worth a warning


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"GIDMIN": "40000", "gidMax": "50000", "gidAllocate": "1", "tls": "0"}, id="all known"),
        pytest.param({"gidAllocate": "false", "gidMin": "3000"}, id="valid limit without effect"),
    ],
)
def test_valid_parameters_have_no_warnings(parameters: Mapping[str, str]) -> None:
    assert class_warnings(slow(parameters)) == ()


def test_warning_quotes_unknown_parameters_as_written() -> None:
    told = class_warnings(slow({"gidMin": "3000", "Archive": "yes", "gid": "7"}))
    remedy = "known are gidMin, gidMax, gidAllocate and tls"
    assert [str(one) for one in told] == [
        "StorageClass slow parameters.Archive: 'yes' has no effect, the parameter is not known; " + remedy,
        "StorageClass slow parameters.gid: '7' has no effect, the parameter is not known; " + remedy,
    ]


@pytest.mark.parametrize(
    ("limits", "parameter", "text"),
    [
        ({"gidMin": "1"}, "gidMin", "'1' is not a valid group ID"),
        ({"gidMin": "3000", "gidMax": "x"}, "gidMax", "'x' is not a valid group ID"),
        ({"gidMin": "4000", "gidMax": "3000"}, "gidMax", "'3000' is below gidMin, '4000'"),
    ],
    ids=["a bad minimum", "a bad maximum", "a turned range"],
)
def test_invalid_limits_without_effect_are_reported(
    limits: Mapping[str, str], parameter: str, text: str
) -> None:
    (told,) = class_warnings(slow({"gidAllocate": "false", **limits}))
    assert str(told) == (
        f"StorageClass slow parameters.{parameter}: {text}, "
        "but has no effect while gidAllocate is false; leave it out"
    )


def test_refused_class_has_no_warnings() -> None:
    with pytest.raises(ClaimRefused, match="is neither true nor false"):
        class_warnings(slow({"gidAllocate": "maybe", "archive": "x"}))
