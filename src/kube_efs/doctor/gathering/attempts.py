"""Reads that may fail: each has a timeout, and a failed one becomes a gap."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import structlog

from kube_efs.doctor.checks.common import problem_of
from kube_efs.doctor.facts import Area, Gap
from kube_efs.model.errors import AwsNotFound, KubeEfsError, public_text

log = structlog.get_logger(__name__)

_Answer = TypeVar("_Answer")


class Attempts:
    """Reads, and the gaps of those that failed."""

    def __init__(self, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._gaps: list[Gap] = []

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What could not be checked so far."""
        return tuple(self._gaps)

    async def look(
        self, what: str, work: Awaitable[_Answer], *, area: Area = Area.PROBE, was_listed: bool = False
    ) -> _Answer | None:
        """The result; None if the read failed, also by its timeout.

        ``was_listed``: AWS listed the object a moment ago. If it does not exist now, that is no gap.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await work
        except TimeoutError:
            self.miss(what, f"no answer within {self._timeout_seconds:g} s", area=area)
        except KubeEfsError as error:
            if was_listed and isinstance(error, AwsNotFound):
                return None
            self.miss(what, problem_of(error), area=area, remedy=error.remedy)
        except Exception as error:
            # One unexpected object must not hide other problems.
            log.exception("look-failed", what=what)
            self.miss(what, public_text(error), area=area)
        return None

    def miss(self, what: str, reason: str, *, area: Area = Area.PROBE, remedy: str = "") -> None:
        """Note that this could not be checked."""
        self._gaps.append(Gap(what=what, reason=reason, area=area, remedy=remedy))
