"""FIPS mode of the node and of stunnel."""

from pathlib import Path

import pytest

from kube_efs.model.errors import InvalidSetting
from kube_efs.tunnels.stunnel.fips import check_fips_mode, is_node_in_fips_mode


@pytest.mark.parametrize(("content", "expected"), [("1\n", True), ("0\n", False), (None, False)])
def test_node_is_in_fips_mode_if_its_kernel_says_so(
    tmp_path: Path, content: str | None, expected: bool
) -> None:
    path = tmp_path / "fips_enabled"
    if content is not None:
        path.write_text(content)
    assert is_node_in_fips_mode(path) is expected


def program(folder: Path, script: str) -> Path:
    """A program with the output of stunnel."""
    path = folder / "stunnel"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


async def test_stunnel_with_a_provider_is_accepted(tmp_path: Path) -> None:
    # It requires the global options on its standard input, and then ends without a service.
    script = """grep -q '^fips = yes$' && [ "$*" = "-fd 0" ] && echo '[.] FIPS mode enabled'; exit 1"""
    await check_fips_mode(program(tmp_path, script), required_by="the test")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param(
            "echo '[!] error queue: x'; echo '[!] FIPS PROVIDER: no such module'; echo '[!] Failed'; exit 1",
            "FIPS PROVIDER: no such module",
            id="no provider",
        ),
        pytest.param("echo '[!] Line 1: Unknown'; echo '[!] Failed'", "Line 1: Unknown; Failed", id="other"),
        pytest.param("exit 1", "no reason given", id="silent"),
    ],
)
async def test_stunnel_without_fips_mode_is_refused_with_its_reason(
    tmp_path: Path, script: str, reason: str
) -> None:
    path = program(tmp_path, script)
    with pytest.raises(InvalidSetting) as refused:
        await check_fips_mode(path, required_by="the node")
    assert str(refused.value) == (
        f"FIPS mode of the tunnels: is required by the node, but {path} has no FIPS mode ({reason});"
        " use an image whose OpenSSL has a FIPS provider, or set FIPS_ENABLED to false"
    )
