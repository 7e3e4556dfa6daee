"""What guests need on the host, without a guest."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.kernel.uml import build_xstate

_GUESTS = 8


@pytest.mark.skipif(shutil.which("cc") is None, reason="cc is missing; only AMX needs it")
def test_guests_that_start_at_the_same_time_build_their_library(tmp_path: Path) -> None:
    folder = tmp_path / "kernel"
    with ThreadPoolExecutor(_GUESTS) as starting:
        libraries = set(starting.map(lambda _: build_xstate(folder), range(_GUESTS)))
    assert libraries == set(folder.iterdir())
