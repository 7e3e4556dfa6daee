"""The faults of requests in a run, chosen by its seed.

Each run has its own few kinds of faults, some rare and some frequent. This is swarm testing: a run with all
kinds of faults at once makes no progress. In some runs, nearly every request of one kind fails.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

# The maximum time that the API server works on a request; its client stops waiting after 30 s.
LATEST_SECONDS = 60.0


class Fault(StrEnum):
    """A kind of fault of a request."""

    LATE = "late"
    UNSENT = "unsent"
    UNANSWERED = "unanswered"
    REPEATED = "repeated"
    BUSY = "busy"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The delays of a request in seconds: until it is carried out, then until its answer, and until a copy.

    None means never. ``code`` is an answer of the server instead of the real one.
    """

    fault: Fault | None = None
    arrives: float | None = 0.01
    answers: float | None = 0.01
    again: float | None = None
    code: int | None = None


_TARGETS = (
    "POST pods",
    "PATCH pods",
    "DELETE pods",
    "GET pods",
    "POST persistentvolumes",
    "DELETE persistentvolumes",
    "PATCH persistentvolumes",
    "GET persistentvolumes",
    "PATCH persistentvolumeclaims",
    "PATCH configmaps",
    "PUT leases",
    "CreateAccessPoint",
    "DeleteAccessPoint",
    "DescribeAccessPoints",
)


class RequestFaults:
    """The faults of one run; ``clear`` ends them."""

    def __init__(
        self,
        rng: random.Random,
        targets_given: Mapping[str, tuple[Fault, float]] = MappingProxyType({}),
        lag: tuple[float, float] | None = None,
    ) -> None:
        self._rng = rng
        self._rates = {fault: rng.choice((0.0, 0.0, 0.0, 0.01, 0.03, 0.1)) for fault in Fault}
        targets = rng.sample(_TARGETS, rng.choice((0, 1, 1, 2)))
        kinds = (Fault.LATE, Fault.LATE, Fault.UNANSWERED, Fault.REPEATED, Fault.UNSENT, Fault.FAILED)
        self._targets = {target: (rng.choice(kinds), rng.choice((0.2, 0.6))) for target in targets}
        self._targets |= targets_given
        self._slow = rng.choice((0.02, 0.02, 0.2, 1.0))
        self._lag_rate = rng.choice((0.0, 0.0, 0.02, 0.2))
        self._lag_most = rng.choice((2.0, 10.0, 40.0))
        if lag is not None:
            self._lag_rate, self._lag_most = lag
        self.is_clear = False

    def __str__(self) -> str:
        rates = {str(fault): rate for fault, rate in self._rates.items() if rate}
        targets = {target: f"{fault} {rate}" for target, (fault, rate) in self._targets.items()}
        return f"rates {rates}, targets {targets}, lag {self._lag_rate} up to {self._lag_most:g} s"

    def clear(self) -> None:
        """End all faults."""
        self.is_clear = True

    def lag(self) -> float:
        """The delay of a change in a watch."""
        if not self.is_clear and self._rng.random() < self._lag_rate:
            return self._rng.uniform(0.5, self._lag_most)
        return self._rng.uniform(0.001, 0.05)

    def delivery(self, request: str) -> Delivery:
        """The delivery of a request, by its method and kind or by its operation."""
        rng = self._rng
        there, back = rng.uniform(0.001, self._slow), rng.uniform(0.001, self._slow)
        if self.is_clear:
            return Delivery(arrives=there / 10, answers=back / 10)
        fault = self._fault(request)
        usual = Delivery(fault=fault, arrives=there, answers=back)
        match fault:
            case Fault.LATE:
                delivery = replace(usual, arrives=rng.uniform(5.0, LATEST_SECONDS))
            case Fault.UNSENT:
                delivery = replace(usual, arrives=None)
            case Fault.UNANSWERED:
                delivery = replace(usual, answers=None)
            case Fault.REPEATED:
                delivery = replace(usual, again=rng.uniform(0.01, LATEST_SECONDS))
            case Fault.BUSY:
                delivery = replace(usual, arrives=None, answers=there + back, code=rng.choice((429, 503)))
            case Fault.FAILED:
                delivery = replace(usual, arrives=there if rng.random() < 0.5 else None, code=500)
            case None:
                delivery = usual
        return delivery

    def _fault(self, request: str) -> Fault | None:
        rng = self._rng
        if request in self._targets:
            fault, rate = self._targets[request]
            if rng.random() < rate:
                return fault
        # Without a stable Lease, the run would make no progress.
        if request.endswith("leases") and rng.random() < 0.7:
            return None
        drawn = rng.random()
        for fault, rate in self._rates.items():
            if drawn < rate:
                return fault
            drawn -= rate
        return None
