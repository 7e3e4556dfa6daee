"""The limits of the Node service for concurrent calls."""

from pathlib import Path

import pytest

from kube_efs.csi.node import RunningCalls
from kube_efs.model.csi.errors import VolumePending


def test_limit_counts_running_calls_only() -> None:
    calls = RunningCalls(2)
    for _ in range(3):
        with calls.publishing(), calls.publishing(), pytest.raises(VolumePending), calls.publishing():
            pass
    with RunningCalls(None).publishing():
        pass


def test_target_is_reserved_for_one_call_until_its_end() -> None:
    calls, target = RunningCalls(), Path("/pods/x")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), calls.exclusive(target), calls.exclusive(Path("/pods/y")):
            raise ZeroDivisionError
    with calls.exclusive(target), pytest.raises(VolumePending, match="in use"), calls.exclusive(target):
        pass
