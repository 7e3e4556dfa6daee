"""Runs ``kube-efs migrate``."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from lightkube.config.kubeconfig import SingleConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from kube_efs.kube.client import connect
from kube_efs.kube.installations import find_installation
from kube_efs.migration.cluster import MigrationStore
from kube_efs.migration.moving import move_claim
from kube_efs.migration.outcomes import MigrationOutcome, as_json, done, failed, planned, refused, render
from kube_efs.migration.plan import Direction, Migration, MigrationRefusal, Selection, plan
from kube_efs.migration.steps import decide
from kube_efs.model.efs.ids import FileSystemId, parse_file_system_id
from kube_efs.model.errors import InvalidSetting, InvalidValue, KubeEfsError
from kube_efs.model.loopback import is_loopback
from kube_efs.model.names import NameSet
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID
from kube_efs.model.visible import visible
from kube_efs.report.tables import make_console
from kube_efs.telemetry.logging import configure

_PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateOptions:
    """The options of the command; without ``go`` nothing is changed.

    ``system_namespace`` and ``name_set`` describe the installation as for ``find_installation``.
    """

    config: SingleConfig
    system_namespace: str | None
    name_set: NameSet | None
    selection: Selection
    direction: Direction
    new_class: str | None
    servers: MappingProxyType[str, FileSystemId]
    wait_seconds: float
    go: bool
    as_json: bool


def parse_servers(texts: Sequence[str]) -> MappingProxyType[str, FileSystemId]:
    """File systems by the names in volumes; raises InvalidSetting."""
    found = {}
    for text in texts:
        name, _, identifier = text.partition("=")
        if not name or not identifier:
            remedy = "write NAME=FILE_SYSTEM_ID"
            raise InvalidSetting("is not a name and an id", field="--server", value=text, remedy=remedy)
        if is_loopback(name):
            # It would be that of every volume behind a tunnel, whatever file system its tunnel leads to.
            remedy = f"name the file system of a volume with its annotation {FILE_SYSTEM_ID}"
            raise InvalidSetting("is the server of every tunnel", field="--server", value=name, remedy=remedy)
        try:
            found[name] = parse_file_system_id(identifier)
        except InvalidValue as error:
            raise InvalidSetting(
                error.problem, field="--server", value=identifier, remedy=error.remedy
            ) from error
    return MappingProxyType(found)


async def run_migration(options: MigrateOptions) -> bool:
    """Show the migration, or do it; False if something prevents or prevented it.

    Raises InvalidSetting when no cluster is configured, KubeError when it does not answer, MigrationRefused
    when it has no CSI driver.
    """
    configure("WARNING")
    async with connect(options.config, patience_seconds=_PATIENCE_SECONDS) as client:
        store = MigrationStore(client)
        if options.direction is Direction.FORWARD:
            await store.check_driver()
        names = await find_installation(client, options.system_namespace, options.name_set)
        state = await store.state(names, options.selection.namespace, options.servers)
        entries = plan(state, options.selection, options.direction, new_class=options.new_class)
        outcomes = await _go(store, entries, options) if options.go else await _look(store, entries)
    _show(outcomes, options)
    return all(one.state.is_well for one in outcomes)


async def _look(
    store: MigrationStore, entries: Sequence[Migration | MigrationRefusal]
) -> list[MigrationOutcome]:
    outcomes = []
    for entry in entries:
        if isinstance(entry, MigrationRefusal):
            outcomes.append(refused(entry))
            continue
        try:
            seen = (await store.look(entry)).seen
            outcomes.append(planned(entry, decide(entry.move, seen), seen.final_policy(entry.move)))
        except KubeEfsError as error:
            outcomes.append(failed(entry, error))
    return outcomes


async def _go(
    store: MigrationStore, entries: Sequence[Migration | MigrationRefusal], options: MigrateOptions
) -> list[MigrationOutcome]:
    outcomes = []
    with _Progress(len(entries)) as tell:
        for number, entry in enumerate(entries):
            outcomes.append(await _move(store, entry, options, partial(tell, number)))
        tell(len(entries), "")
    return outcomes


async def _move(
    store: MigrationStore,
    entry: Migration | MigrationRefusal,
    options: MigrateOptions,
    tell: Callable[[str], None],
) -> MigrationOutcome:
    """One claim; the others do not depend on its result."""
    if isinstance(entry, MigrationRefusal):
        return refused(entry)
    try:
        await move_claim(
            store,
            entry,
            lambda text: tell(f"{entry.namespace}/{entry.claim}: {text}"),
            wait_seconds=options.wait_seconds,
        )
        policy = (await store.look(entry)).seen.final_policy(entry.move)
    except KubeEfsError as error:
        return failed(entry, error)
    return done(entry, policy)


class _Progress:
    """A progress bar on a terminal, otherwise a line for each message; on standard error."""

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._total = total
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Callable[[int, str], None]:
        self._bar.start()
        return self._tell

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _tell(self, number: int, text: str) -> None:
        text = visible(text, may_have_lines=False)
        self._bar.update(self._task, completed=number, description=text)
        if text and not self._console.is_terminal:
            self._console.out(f"[{number + 1}/{self._total}] {text}")


def _show(outcomes: Sequence[MigrationOutcome], options: MigrateOptions) -> None:
    console = make_console()
    if options.as_json:
        console.out(json.dumps(as_json(outcomes), indent=2))
        return
    if not outcomes:
        console.out("There is nothing to migrate.")
        return
    console.print(render(outcomes))
    if not options.go:
        console.out("Nothing was changed; add --yes to do this.")
    elif not all(one.state.is_well for one in outcomes):
        console.out("Run the same command again to continue, or with --rollback to undo.")
