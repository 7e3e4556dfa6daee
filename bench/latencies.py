"""Who is asked for what when, and how long it took. No I/O."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A claim: when it was due and when it was Bound, in seconds since the beginning; None for never.

    Time counts from the moment that it was due: a server that is slow to take it looks no better for that.
    """

    name: str
    storage_class: str
    due: float
    bound: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long somebody had to wait."""
        return None if self.bound is None else self.bound - self.due


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The seconds until claims of a class were Bound; None where none was."""

    storage_class: str
    claims: int
    bound: int
    p50: float | None
    p90: float | None
    p99: float | None
    longest: float | None


def spread(weights: Mapping[str, int], count: int) -> list[str]:
    """So many names, mixed as evenly as their weights allow, the same ones each time."""
    total = sum(weights.values())
    credit = dict.fromkeys(weights, 0)
    chosen = []
    for _ in range(count):
        for name, weight in weights.items():
            credit[name] += weight
        best = max(credit, key=lambda name: credit[name])
        credit[best] -= total
        chosen.append(best)
    return chosen


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The least of the values that so many percent of all do not exceed; None when there is no value."""
    if not ordered:
        return None
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def summarize(timings: Iterable[Timing]) -> list[Summary]:
    """One for each class in the order of names, then one for all."""
    timings = list(timings)
    classes = sorted({one.storage_class for one in timings})
    parts = [(name, [one for one in timings if one.storage_class == name]) for name in classes]
    return [_summary(name, part) for name, part in [*parts, (ALL, timings)]]


def _summary(name: str, timings: Sequence[Timing]) -> Summary:
    waits = sorted(one.seconds for one in timings if one.seconds is not None)
    return Summary(
        storage_class=name,
        claims=len(timings),
        bound=len(waits),
        p50=percentile(waits, 50),
        p90=percentile(waits, 90),
        p99=percentile(waits, 99),
        longest=waits[-1] if waits else None,
    )


def rate(moments: Sequence[float]) -> float:
    """How many a second there were until the last one."""
    return len(moments) / max(moments) if moments and max(moments) > 0 else 0.0


def slope(moments: Sequence[float]) -> float:
    """Seconds for each further one: the least-squares line through the moments of the first, second, ..."""
    ordered = sorted(moments)
    numbers = range(1, len(ordered) + 1)
    mean_number, mean_moment = sum(numbers) / len(ordered), sum(ordered) / len(ordered)
    above = sum((n - mean_number) * (m - mean_moment) for n, m in zip(numbers, ordered, strict=True))
    return above / sum((n - mean_number) ** 2 for n in numbers)
