import inspect
import re

import pytest

from kube_efs.model import errors
from kube_efs.model.errors import InvalidValue, KubeEfsError, shown


def _drawn_tree() -> dict[str, str]:
    """The parent of each class in the docstring of the module."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").split("::", maxsplit=1)[1].splitlines():
        match = re.match(r"^    ([│ ├└─]*)(\w+)", line)
        if match and (match[2] == "KubeEfsError" or match[1]):
            depth = len(match[1]) // 4
            above = [*above[:depth], match[2]]
            parents[match[2]] = above[depth - 1] if depth else "Exception"
    return parents


def test_docstring_shows_the_tree_of_error_classes() -> None:
    classes = {
        name: cls.__base__.__name__
        for name, cls in vars(errors).items()
        if inspect.isclass(cls) and issubclass(cls, Exception) and cls.__base__
    }
    assert _drawn_tree() == classes


def test_every_error_has_a_docstring() -> None:
    undocumented = [
        cls.__name__ for cls in vars(errors).values() if inspect.isclass(cls) and not cls.__dict__["__doc__"]
    ]
    assert undocumented == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(KubeEfsError("is down"), "is down", id="problem only"),
        pytest.param(KubeEfsError("is down", field="server"), "server: is down", id="with a field"),
        pytest.param(KubeEfsError("is not valid", value="x"), "'x' is not valid", id="with a value"),
        pytest.param(
            InvalidValue(
                "is not a valid port", field="fs-1.stunnel_port", value=7, remedy="use 1024 to 65535"
            ),
            "fs-1.stunnel_port: 7 is not a valid port; use 1024 to 65535",
            id="with everything",
        ),
        pytest.param(
            InvalidValue("is not a valid port", value=0), "0 is not a valid port", id="zero is a value"
        ),
        pytest.param(
            InvalidValue("is not a valid port", value=None), "None is not a valid port", id="None is a value"
        ),
        pytest.param(
            InvalidValue("is no name", value="a\nb"),
            r"'a\nb' is no name",
            id="control characters are escaped",
        ),
    ],
)
def test_error_text_contains_field_value_and_remedy(error: KubeEfsError, text: str) -> None:
    assert str(error) == text


def test_short_yaml_that_expands_to_gigabytes_gives_a_short_text() -> None:
    value: list[object] = ["x" * 1000]
    for _ in range(30):
        value = [value] * 10
    assert len(shown(value)) < 10_000


def test_huge_number_is_described_not_printed() -> None:
    assert shown(10**5000) == "a huge int"


def test_long_text_is_truncated_in_the_middle() -> None:
    text = shown("a" * 10_000 + "end")
    assert len(text) <= 200
    assert text.endswith("aend'")
