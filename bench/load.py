"""``python -m bench.load``: claims at a rate with a mix of classes, on any cluster, and how long they took.

    python -m bench.load --class efs-sc=3 --class tunnel-sc=1 --rate 10 --count 200

They are made in a namespace of their own, which goes afterwards with all that was made. Ends with 1 when a
claim was not Bound in time or a volume is left.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from bench.claiming import Load, orders
from bench.latencies import Summary, Timing, rate, spread, summarize
from lightkube import AsyncClient
from lightkube.resources.storage_v1 import StorageClass
from rich.console import Console
from rich.table import Table

from kube_efs.kube.client import connect, load_config
from kube_efs.kube.errors import translated
from kube_efs.model.errors import InvalidValue, KubeEfsError
from kube_efs.settings.controller import DEFAULT_PROVISIONER

_MOST: Final = 100_000


class Output(StrEnum):
    """How the result is printed."""

    TABLE = "table"
    JSON = "json"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--output json`` prints; times are in seconds."""

    bound_a_second: float
    seconds_to_create: float
    classes: list[Summary]
    volumes_left: int


def parse_mix(texts: Sequence[str]) -> dict[str, int]:
    """Weights by class, of texts such as ``efs-sc=3``; 1 without a number. Raises InvalidValue."""
    mix: dict[str, int] = {}
    for text in texts:
        name, _, weight = text.partition("=")
        if not name or (weight and not weight.isdecimal()) or weight.strip("0") == "" != weight:
            remedy = "write NAME or NAME=WEIGHT, with a whole number above 0"
            raise InvalidValue("is not a class with a weight", field="--class", value=text, remedy=remedy)
        mix[name] = mix.get(name, 0) + int(weight or 1)
    return mix


async def selecting(client: AsyncClient, classes: Sequence[str]) -> set[str]:
    """Those of the classes whose claims must select; raises InvalidValue for one that nobody can wait for."""
    found = set()
    for name in classes:
        with translated(f"StorageClass {name}"):
            one = await client.get(StorageClass, name)
        if one.volumeBindingMode == "WaitForFirstConsumer":
            remedy = "use a class with volumeBindingMode Immediate"
            raise InvalidValue("waits for a pod", field="StorageClass", value=name, remedy=remedy)
        if one.provisioner == DEFAULT_PROVISIONER:
            found.add(name)
    return found


async def generate(
    client: AsyncClient,
    mix: Mapping[str, int],
    *,
    count: int,
    per_second: float | None,
    size: str,
    patience_seconds: float,
) -> Report:
    """Make the claims, wait for them, and clean up; raises KubeEfsError."""
    chosen = spread(mix, count)
    wanted = orders(chosen, per_second, selecting=await selecting(client, list(mix)), size=size)
    timings: list[Timing] = []
    with translated("the load"):
        async with Load.of(client) as load:
            try:
                timings = await load.run(wanted, patience_seconds=patience_seconds)
            finally:
                left = await load.clean(patience_seconds=patience_seconds)
    return Report(
        bound_a_second=rate([one.bound for one in timings if one.bound is not None]),
        seconds_to_create=load.created_seconds,
        classes=summarize(timings),
        volumes_left=left,
    )


def table(report: Report) -> Table:
    """The report for people."""
    made = Table("class", "claims", "Bound", "p50", "p90", "p99", "max", title="seconds until Bound")
    for one in report.classes:
        times = (one.p50, one.p90, one.p99, one.longest)
        cells = ("" if seconds is None else f"{seconds:.2f}" for seconds in times)
        made.add_row(one.storage_class, f"{one.claims:,}", f"{one.bound:,}", *cells)
    made.caption = f"{report.bound_a_second:.1f} a second; {report.volumes_left} volumes left"
    return made


def main(
    classes: Annotated[
        list[str], typer.Option("--class", help="StorageClass, and its weight as NAME=WEIGHT; several times.")
    ],
    count: Annotated[int, typer.Option(help="How many claims.", min=1, max=_MOST)] = 100,
    per_second: Annotated[
        float | None, typer.Option("--rate", help="Claims a second; all at once without it.", min=0.001)
    ] = None,
    size: Annotated[str, typer.Option(help="What each claim asks for.")] = "1Gi",
    kubeconfig: Annotated[Path | None, typer.Option(help="Which cluster; KUBECONFIG without it.")] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for the last claim, and then for its volume to go.", min=1)
    ] = 300.0,
    output: Annotated[Output, typer.Option(help="A table, or JSON.")] = Output.TABLE,
) -> None:
    """Make claims at a rate, and tell how long they took to be Bound."""

    async def run() -> Report:
        async with connect(load_config(kubeconfig)) as client:
            return await generate(
                client,
                parse_mix(classes),
                count=count,
                per_second=per_second,
                size=size,
                patience_seconds=patience,
            )

    try:
        report = asyncio.run(run())
    except KubeEfsError as error:
        Console(stderr=True).print(str(error), markup=False)
        raise typer.Exit(2) from error
    if output is Output.JSON:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    else:
        Console().print(table(report))
    everything = report.classes[-1]
    raise typer.Exit(int(everything.bound < everything.claims or report.volumes_left > 0))


if __name__ == "__main__":
    typer.run(main)
