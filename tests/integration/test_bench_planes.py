"""The measurement of the data planes, in small, with another program instead of efs-proxy."""

from pathlib import Path

import pytest
from bench.plane_samples import Metric, Sizes, sample
from bench.planes import BARE, EFS_PROXY, EFS_PROXY_PROGRAM, STUNNEL

# stunnel reads the file that efs-utils writes for efs-proxy, too.
_STUNNEL = """\
#!/bin/sh
exec stunnel "$1"
"""
_SIZES = Sizes(rounds=2, mebibytes=1, requests=16, counts=(10,))
_ONCE = {Metric.IDLE_MEMORY, Metric.BUSY_MEMORY, Metric.ADD_TIME, Metric.ADD_CPU}


async def test_each_plane_is_measured_in_each_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "efs-proxy"
    program.write_text(_STUNNEL)
    program.chmod(0o700)
    monkeypatch.setenv(EFS_PROXY_PROGRAM, str(program))
    samples = await sample(tmp_path, _SIZES)
    assert {STUNNEL, BARE, EFS_PROXY} <= samples.keys()
    for plane, found in samples.items():
        for metric in Metric:
            name = metric.at(10) if metric in {Metric.ADD_TIME, Metric.ADD_CPU} else metric
            values = found[name]
            assert len(values) == (1 if metric in _ONCE else _SIZES.rounds), (plane, name)
            assert min(values) > 0, (plane, name)
