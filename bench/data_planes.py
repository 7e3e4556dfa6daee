"""The data planes side by side: stunnel as the agent configures it, and what could be in its place.

A kernel without TLS cannot run the relay. It is then measured in a guest, beside stunnel in the same guest,
and only the ratios of the two say something about a node.
"""

import asyncio
import os
import statistics
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from bench.figures import Figure, Row, at_most, plain
from bench.guest_cipher.build import build_cipher
from bench.guest_planes import CIPHER, SAMPLES, data_planes
from bench.plane_samples import COUNTS, Metric, Samples, Sizes, sample
from bench.planes import EFS_PROXY, EFS_PROXY_PROGRAM, RELAY, STUNNEL
from tests.kernel.uml import Guest, what_is_missing

_SIZES: Final = Sizes(rounds=5, mebibytes=256, requests=1000)
_GUEST_SECONDS: Final = 400.0
_CACHE: Final = Path(__file__).parents[1] / ".cache" / "kernel"
_UNITS: Final = {
    Metric.WRITE_CPU: "s",
    Metric.READ_CPU: "s",
    Metric.WRITE_SERVER_CPU: "s",
    Metric.READ_SERVER_CPU: "s",
    Metric.WRITE_SPEED: "MiB/s",
    Metric.READ_SPEED: "MiB/s",
    Metric.P50_OF_ONE: "ms",
    Metric.P99_OF_ONE: "ms",
    Metric.P50_OF_MANY: "ms",
    Metric.P99_OF_MANY: "ms",
    Metric.IDLE_MEMORY: "MB",
    Metric.BUSY_MEMORY: "MB",
    **{metric.at(count): "ms" for count in COUNTS for metric in (Metric.ADD_TIME, Metric.ADD_CPU)},
}
# What the relay must reach: how much of the same figure of another plane it may need.
_GOALS: Final[Mapping[str, Mapping[str, float]]] = {
    STUNNEL: {Metric.WRITE_CPU: 0.65, Metric.READ_CPU: 0.65},
    EFS_PROXY: {
        Metric.WRITE_CPU: 0.8,
        Metric.READ_CPU: 0.8,
        Metric.BUSY_MEMORY: 0.05,
        Metric.ADD_TIME.at(COUNTS[0]): 0.1,
        Metric.ADD_CPU.at(COUNTS[0]): 0.1,
    },
}


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """The figures of this kernel, and the ratios of the relay, from a guest if need be."""
    here = await sample(folder, _SIZES)
    for figure in side_by_side(here):
        yield figure
    ratios: Iterable[Figure]
    if RELAY in here:
        ratios = relay_ratios(here)
    else:
        ratios = await asyncio.to_thread(_ratios_of_a_guest, folder / "guest")
    for figure in ratios:
        yield figure


def side_by_side(samples: Samples) -> Iterator[Figure]:
    """The medians of stunnel, each with those of the other planes in its detail."""
    for metric, unit in _UNITS.items():
        others = [
            f"{plane} {statistics.median(found[metric]):.3g}"
            for plane, found in samples.items()
            if plane != STUNNEL and metric in found
        ]
        if EFS_PROXY not in samples and metric == Metric.WRITE_CPU:
            others.append(f"efs-proxy left out, because {EFS_PROXY_PROGRAM} names no program")
        yield plain(metric, statistics.median(samples[STUNNEL][metric]), unit, ", ".join(others))


def relay_ratios(samples: Samples, *, where: str = "") -> Iterator[Figure]:
    """What the relay needs of what each other plane needs; medians of the rounds."""
    for other in (STUNNEL, EFS_PROXY):
        for metric, unit in _UNITS.items() if other in samples else ():
            if metric in samples[other]:
                yield _ratio(samples, metric, unit, other, where)


def _ratio(samples: Samples, metric: str, unit: str, other: str, where: str) -> Figure:
    ours, theirs = samples[RELAY][metric], samples[other][metric]
    ratio = statistics.median(one / another for one, another in zip(ours, theirs, strict=True))
    detail = f"{statistics.median(ours):.3g} {unit} ÷ {statistics.median(theirs):.3g} {unit}"
    name = f"{metric}, {RELAY} ÷ {other}{where}"
    limit = _GOALS[other].get(metric)
    return plain(name, ratio, "", detail) if limit is None else at_most(name, ratio, limit, "", detail)


def _ratios_of_a_guest(folder: Path) -> Iterable[Figure]:
    if missing := what_is_missing():
        raise RuntimeError(missing)
    scenario = data_planes.__name__
    program = os.environ.get(EFS_PROXY_PROGRAM)
    environment = {CIPHER: str(build_cipher(_CACHE))}
    guest = Guest(
        module=data_planes.__module__,
        scenarios=(scenario,),
        folder=folder,
        environment=environment | ({EFS_PROXY_PROGRAM: program} if program else {}),
    )
    result = guest.run(seconds=_GUEST_SECONDS)[scenario]
    if result.error:
        raise RuntimeError(result.error)
    samples = msgspec.json.decode(
        (folder / scenario / SAMPLES).read_bytes(), type=dict[str, dict[str, list[float]]]
    )
    return relay_ratios(samples, where=", in a guest")


ROW: Final = Row(name="data-planes", measure=measure)
