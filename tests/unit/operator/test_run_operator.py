"""The loop of the operator, which unexpected errors do not end."""

import asyncio
from contextlib import suppress
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from kube_efs.operator.reconciler import Reconciler
from kube_efs.operator.run import _reconcile_forever
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.health import Heartbeat

pytestmark = pytest.mark.virtual_time


class Failing:
    """Fails once, and then does its work."""

    def __init__(self) -> None:
        self.passes = 0

    async def reconcile(self, *, full: bool) -> float:
        self.passes += 1
        if self.passes == 1:
            raise ZeroDivisionError("a mistake")
        return 3600.0


async def _nothing() -> None:
    """Nothing precedes a full pass."""


async def test_internal_error_is_counted_and_the_pass_is_repeated() -> None:
    registry, reconciler = CollectorRegistry(), Failing()
    loop = _reconcile_forever(
        cast("Reconciler", reconciler),
        asyncio.Event(),
        3600.0,
        Heartbeat("operator", max_age_seconds=60.0),
        Duties(registry),
        before_full=_nothing,
    )
    with suppress(TimeoutError):
        async with asyncio.timeout(40):
            await loop
    assert reconciler.passes == 2
    assert registry.get_sample_value("kube_efs_duty_failures_total", {"duty": "reconciliation"}) == 1
