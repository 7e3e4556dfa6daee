"""Which directories of certificate authorities are used instead of files."""

from pathlib import Path

import pytest

from kube_efs.tunnels.authorities import find_hashed_directories

_ONE = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
_TWO = "-----BEGIN CERTIFICATE-----\nMQ==\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("in_directory", "is_used"),
    [
        pytest.param({"a.0": _ONE, "b.0": _TWO}, True, id="the same"),
        pytest.param({"a.0": _ONE, "b.0": _TWO, "a.pem": _ONE}, True, id="one twice"),
        pytest.param({"a.0": _ONE}, False, id="one is missing"),
        pytest.param({"a.0": _ONE, "b.0": _TWO, "c.0": _TWO.replace("MQ", "Mg")}, False, id="one more"),
        pytest.param({"a.0": _ONE, "b.0": _TWO, "c.0": "\xff"}, False, id="not a text"),
        pytest.param({}, False, id="empty"),
        pytest.param(None, False, id="no directory"),
    ],
)
def test_directory_is_used_if_it_has_the_authorities_of_the_file(
    in_directory: dict[str, str] | None, is_used: bool, tmp_path: Path
) -> None:
    file, directory = tmp_path / "ca.crt", tmp_path / "ca.crt.d"
    file.write_text(f"# a comment\n{_ONE}{_TWO}")
    if in_directory is not None:
        directory.mkdir()
        for name, text in in_directory.items():
            (directory / name).write_text(text, encoding="latin-1")
    assert find_hashed_directories([file, tmp_path / "missing.crt"]) == (
        frozenset({directory}) if is_used else frozenset()
    )
