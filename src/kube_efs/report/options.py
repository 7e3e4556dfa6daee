"""The options of ``kube-efs status`` and ``top``, without the modules that read a cluster."""

from enum import StrEnum
from typing import Annotated

import typer


class VolumeOrder(StrEnum):
    """Which volumes ``kube-efs top`` shows first."""

    SIZE = "size"
    GROWTH = "growth"
    TRAFFIC = "traffic"
    CONNECTIONS = "connections"


ClaimsInOption = Annotated[
    str | None,
    typer.Option(
        "--claims-in", metavar="NAMESPACE", help="Only claims of this namespace.", show_default="all"
    ),
]
SortOption = Annotated[VolumeOrder, typer.Option("--sort", help="Which volumes are first.")]
LimitOption = Annotated[int, typer.Option(min=0, help="How many volumes; 0 is all.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Show them again and again.")]
IntervalOption = Annotated[float, typer.Option(min=1, help="Seconds between them, with --watch.")]
