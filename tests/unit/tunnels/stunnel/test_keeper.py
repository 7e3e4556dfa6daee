"""Finding stunnel, and the pause before its restart."""

from pathlib import Path

import pytest

from kube_efs.model.errors import StunnelMissing
from kube_efs.tunnels.backoff import RestartBackoff
from kube_efs.tunnels.stunnel.process import find_stunnel


def program(path: Path, mode: int = 0o755) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_first_existing_default_path_is_used(tmp_path: Path) -> None:
    second, third = program(tmp_path / "second"), program(tmp_path / "third")
    assert find_stunnel(None, (tmp_path / "first", second, third)) == second


def test_configured_path_is_used_instead(tmp_path: Path) -> None:
    usual, configured = program(tmp_path / "usual"), program(tmp_path / "configured")
    assert find_stunnel(configured, (usual,)) == configured


def test_missing_configured_path_is_not_replaced_by_a_default(tmp_path: Path) -> None:
    with pytest.raises(StunnelMissing) as missing:
        find_stunnel(tmp_path / "configured", (program(tmp_path / "usual"),))
    assert (missing.value.field, missing.value.value) == ("STUNNEL_PATH", str(tmp_path / "configured"))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path, id="missing path"),
        pytest.param(lambda path: path.mkdir(), id="directory"),
        pytest.param(lambda path: program(path, 0o644), id="file that is not executable"),
    ],
)
def test_path_that_is_not_a_program_is_an_error_that_names_the_setting(make: object, tmp_path: Path) -> None:
    path = tmp_path / "stunnel"
    assert callable(make)
    make(path)
    with pytest.raises(StunnelMissing) as missing:
        find_stunnel(None, (path,))
    assert str(missing.value) == (
        f"STUNNEL_PATH: {str(path)!r} is not an executable program;"
        " install stunnel, or set STUNNEL_PATH to its path"
    )


@pytest.mark.parametrize(
    ("lives", "delays"),
    [
        pytest.param([3600], [0], id="long life"),
        pytest.param([0.1], [0.2], id="one short life: short pause"),
        pytest.param([0.1] * 5, [0.2, 0.4, 0.8, 1.6, 3.2], id="short lives in a row"),
        pytest.param([0.1] * 9, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30], id="never longer than 30 s"),
        pytest.param([0.1, 0.1, 60, 0.1], [0.2, 0.4, 0, 0.2], id="long life resets the pause"),
    ],
)
def test_restarts_wait_longer_after_each_short_life(lives: list[float], delays: list[float]) -> None:
    delay, found = RestartBackoff(), []
    for life in lives:
        delay = delay.after_life_of(life)
        found.append(delay.seconds)
    assert found == pytest.approx(delays)
