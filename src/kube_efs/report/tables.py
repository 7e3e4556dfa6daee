"""The tables of a report for a terminal."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kube_efs.model.visible import visible
from kube_efs.report.formatting import (
    format_location,
    format_mount_target,
    format_notes,
    format_object,
    format_usage,
)
from kube_efs.report.values import (
    ClaimReport,
    ClusterReport,
    EventReport,
    FileSystemReport,
    NodeReport,
    VolumeReport,
)
from kube_efs.tunnels.status import TunnelState, TunnelStatus

# Narrower texts than this are hard to read; wider ones may be as narrow as this.
_TEXT_WIDTH = 24
# Beyond any cell.
_ANY_WIDTH = 100_000
_COLOURS = {
    "Bound": "green",
    "Available": "green",
    "Pending": "yellow",
    "Released": "yellow",
    "Lost": "red",
    "Failed": "red",
    "Warning": "yellow",
    str(TunnelState.UP): "green",
    str(TunnelState.STARTING): "yellow",
    str(TunnelState.DOWN): "red",
    str(TunnelState.REJECTED): "red",
    str(TunnelState.NO_MOUNT_TARGET): "red",
}


def text_of(text: str, *, style: str = "") -> Text:
    """A text of a table, which may come from anyone who can write objects of the cluster."""
    return Text(visible(text), style=style)


def line_of(text: str, *, style: str = "") -> Text:
    """The same for a text outside of a table, where another line could look like one of this program."""
    return Text(visible(text, may_have_lines=False), style=style)


def coloured(word: str) -> Text:
    """A phase or state in color: green for good, yellow for temporary, red for bad."""
    return text_of(word, style=_COLOURS.get(word, ""))


def make_console(*, quiet: bool = False) -> Console:
    """Standard output; wide enough for the tables if it is not a terminal, which has its own width."""
    console = Console(quiet=quiet, highlight=False)
    return console if console.is_terminal else Console(quiet=quiet, highlight=False, width=160)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A table, or on a terminal that is too narrow for it a list of its rows, so that no name is broken.

    Only cells with spaces are texts, which may continue on the next line. Programs such as grep get a table.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    has_lines: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The form that fits."""
        table = self._table(console, options, keeps_names=True)
        if Measurement.get(console, options.update(max_width=_ANY_WIDTH), table).minimum <= options.max_width:
            yield table
        elif console.is_terminal:
            yield from self._list()
        else:
            yield self._table(console, options, keeps_names=False)

    def _table(self, console: Console, options: ConsoleOptions, *, keeps_names: bool) -> Table:
        table = Table(
            title=self.title,
            title_justify="left",
            title_style="bold",
            header_style="dim",
            box=box.SIMPLE,
            pad_edge=False,
            show_lines=self.has_lines,
        )
        unlimited = options.update(max_width=_ANY_WIDTH)
        for at, column in enumerate(self.columns):
            sizes = [Measurement.get(console, unlimited, row[at]) for row in self.rows]
            longest_word = max((one.minimum for one in sizes), default=0)
            longest_text = max((one.maximum for one in sizes), default=0)
            least = max(longest_word, min(longest_text, _TEXT_WIDTH)) if keeps_names else None
            table.add_column(column, overflow="fold", min_width=least)
        for row in self.rows:
            table.add_row(*row)
        return table

    def _list(self) -> Iterator[RenderableType]:
        yield Text(self.title, style="bold")
        width = max(map(len, self.columns))
        for row in self.rows:
            record = Table.grid(padding=(0, 2))
            record.add_column(style="dim", width=width)
            record.add_column(overflow="fold")
            for column, cell in zip(self.columns, row, strict=True):
                if cell:
                    record.add_row(column, cell)
            yield Padding(record, (1, 0, 0, 1))
        yield ""


def table_of(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, has_lines: bool = False
) -> Listing:
    """A table; cells are plain text, or from ``text_of`` or ``coloured``. ``has_lines`` separates rows."""
    # Text from a cluster must not be read as rich's markup.
    cells = (tuple(text_of(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
    return Listing(
        title=visible(title, may_have_lines=False),
        columns=tuple(columns),
        rows=tuple(cells),
        has_lines=has_lines,
    )


def render_cluster(report: ClusterReport) -> RenderableType:
    """All tables of a report."""
    parts: list[RenderableType] = [
        _file_systems(report.file_systems),
        claims_table(report.claims),
        volumes_table(report.volumes),
        tunnels_table(report.nodes),
    ]
    if any(tunnel.on_demand for _, tunnel in _tunnels(report.nodes)):
        parts.append(on_demand_table(report.nodes))
    if report.events:
        parts.append(_events(report.events))
    problems = [
        *report.problems,
        *(f"{node.node}: {text}" for node in report.nodes for text in node.problems),
    ]
    notes = [f"{node.node}: {text}" for node in report.nodes for text in node.notes]
    return Group(
        *parts,
        *(line_of(note, style="dim") for note in notes),
        *(line_of(f"! {problem}", style="red") for problem in problems),
    )


def _file_systems(found: Iterable[FileSystemReport]) -> Listing:
    rows = [
        (
            one.file_system_id,
            one.name,
            str(one.port),
            "\n".join(
                f"{target.address} ({target.zone or target.subnet_id})" for target in one.mount_targets
            ),
            str(one.volumes),
        )
        for one in found
    ]
    return table_of("File systems", ["id", "name", "port", "mount targets", "volumes"], rows)


def claims_table(found: Iterable[ClaimReport]) -> Listing:
    """Claims, with the reason of those without a volume."""
    rows = [
        (f"{one.namespace}/{one.name}", coloured(one.phase), one.storage_class, one.volume or one.reason)
        for one in found
    ]
    return table_of("Claims", ["claim", "phase", "class", "volume, or why it is missing"], rows)


def volumes_table(found: Iterable[VolumeReport]) -> Listing:
    """Volumes with their location, and their usage if it is measured."""
    volumes = list(found)
    rows: list[tuple[str | Text, ...]] = [
        (
            one.name,
            coloured(one.phase),
            one.reclaim_policy,
            one.claim,
            text_of(format_usage(one), style="red" if one.usage and one.usage.over else ""),
            format_location(one),
            "" if one.gid is None else str(one.gid),
            "" if one.port is None else f"127.0.0.1:{one.port}",
        )
        for one in volumes
    ]
    columns = ["volume", "phase", "policy", "claim", "used", "data", "gid", "through"]
    if not any(one.usage for one in volumes):
        at = columns.index("used")
        columns, rows = columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]
    return table_of("Volumes", columns, rows)


def tunnels_table(nodes: Iterable[NodeReport]) -> Listing:
    """The tunnels of all nodes, with the reason of those that are not up."""
    rows = [_tunnel(node, tunnel) for node, tunnel in _tunnels(nodes) if not tunnel.on_demand]
    columns = ["node", "file system", "port", "state", "mount target", "TLS", "connections", "reason"]
    return table_of("Tunnels", columns, rows)


def on_demand_table(nodes: Iterable[NodeReport]) -> Listing:
    """The tunnels of CSI mounts, the number of their holders, and the expiry of their certificates."""
    rows = [
        (
            node.node,
            tunnel.file_system_id,
            tunnel.access_point_id,
            str(tunnel.port),
            coloured(str(tunnel.state)),
            format_mount_target(tunnel),
            str(tunnel.holders),
            str(tunnel.connections),
            tunnel.certificate_ends,
            tunnel.reason,
        )
        for node, tunnel in _tunnels(nodes)
        if tunnel.on_demand
    ]
    columns = ["node", "file system", "access point", "port", "state", "mount target"]
    columns += ["mounts", "connections", "certificate until", "reason"]
    return table_of("Tunnels of CSI mounts", columns, rows)


def _events(found: Iterable[EventReport]) -> Listing:
    rows = [
        (one.time, coloured(one.type), one.reason, format_object(one), str(one.count), one.message)
        for one in found
    ]
    return table_of("Recent events", ["last", "type", "reason", "object", "count", "message"], rows)


def _tunnels(nodes: Iterable[NodeReport]) -> Iterator[tuple[NodeReport, TunnelStatus]]:
    return ((node, tunnel) for node in nodes for tunnel in node.tunnels)


def _tunnel(node: NodeReport, tunnel: TunnelStatus) -> tuple[str | Text, ...]:
    return (
        node.node,
        tunnel.file_system_id,
        str(tunnel.port),
        coloured(str(tunnel.state)),
        format_mount_target(tunnel),
        f"{tunnel.tls_version} {tunnel.cipher}".strip(),
        str(tunnel.connections),
        format_notes(tunnel),
    )
