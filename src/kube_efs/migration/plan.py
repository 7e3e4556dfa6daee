"""Selects the claims to migrate from the objects of a cluster."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from kube_efs.kube.reading import read_volume
from kube_efs.migration.errors import MigrationRefused
from kube_efs.migration.journal import ANNOTATION, Journal, read_journal
from kube_efs.migration.manifests import Manifest, claim_with, kept_volume, plain_claim, plain_volume
from kube_efs.migration.marks import KEPT, Mark, marked, read_mark
from kube_efs.migration.steps import Move
from kube_efs.migration.translating import Translation, csi_name, translate
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import TunnelTargets
from kube_efs.model.errors import InvalidValue, KubeEfsError
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID, ROOT_CLASS
from kube_efs.model.volumes import DRIVER, LOOPBACK, Location, NfsSource, Volume, VolumePhase, locate


class Direction(StrEnum):
    """The direction of a migration."""

    FORWARD = "to CSI"
    BACK = "to NFS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The claims that the user has named; None and empty select all."""

    namespace: str | None = None
    storage_class: str | None = None
    claims: frozenset[str] = frozenset()

    def has(self, volume: Volume, *classes: str) -> bool:
        """Whether the claim of the volume is selected, with any of these classes."""
        claim = volume.claim
        if claim is None or (self.namespace is not None and claim.namespace != self.namespace):
            return False
        is_of_class = self.storage_class is None or self.storage_class in classes
        return is_of_class and (not self.claims or claim.name in self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationState:
    """The objects of the API that are checked; claims by namespace and name.

    ``servers`` are names of file systems that do not tell which one they are of.
    """

    volumes: Sequence[Manifest]
    claims: Mapping[tuple[str, str], Manifest]
    targets: TunnelTargets = field(default_factory=TunnelTargets)
    servers: Mapping[str, FileSystemId] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The two volumes of a claim; ``csi_volume`` is created if it does not exist.

    ``source_policy`` is the reclaim policy of the source when this was planned, and ``source_was_kept``
    whether a migration had set it.
    """

    namespace: str
    claim: str
    nfs: str
    csi: str
    place: str
    direction: Direction
    source_policy: ReclaimPolicy
    journal: Journal
    csi_volume: Manifest
    source_was_kept: bool = False
    notes: tuple[str, ...] = ()

    @property
    def move(self) -> Move:
        """The direction of the migration of the claim."""
        forward = self.direction is Direction.FORWARD
        return Move(
            namespace=self.namespace,
            claim=self.claim,
            source=self.nfs if forward else self.csi,
            target=self.csi if forward else self.nfs,
            source_policy=self.source_policy,
            policy=self.journal.policy if forward else self.journal.nfs_policy,
            source_was_kept=self.source_was_kept,
        )

    @property
    def target_volume(self) -> Manifest:
        """The target volume to create."""
        forward = self.direction is Direction.FORWARD
        return marked(self.csi_volume if forward else kept_volume(self.journal.volume), Mark.ARRIVING)

    def new_claim(self, journal: Journal) -> Manifest:
        """The claim to create, from the current journal."""
        csi_class, nfs_class = self.csi_volume["spec"], journal.claim["spec"]
        found = csi_class if self.direction is Direction.FORWARD else nfs_class
        return claim_with(
            journal.claim, volume=self.move.target, storage_class=found.get("storageClassName", "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRefusal:
    """A selected claim that cannot be migrated."""

    namespace: str
    claim: str
    volume: str
    error: KubeEfsError


def plan(
    state: MigrationState, selection: Selection, direction: Direction, *, new_class: str | None = None
) -> tuple[Migration | MigrationRefusal, ...]:
    """The migrations to start or to complete, in the order of names.

    ``new_class`` is the class that claims get; None leaves each its own.
    """
    found = [*_begun(state, selection, direction)]
    if direction is Direction.FORWARD:
        begun = {one.nfs for one in found if isinstance(one, Migration)}
        found += _new(state, selection, begun, new_class)
    return tuple(sorted(found, key=lambda one: (one.namespace, one.claim)))


def _begun(
    state: MigrationState, selection: Selection, direction: Direction
) -> Iterator[Migration | MigrationRefusal]:
    by_name = {body["metadata"]["name"]: body for body in state.volumes}
    for body in state.volumes:
        note = (body["metadata"].get("annotations") or {}).get(ANNOTATION)
        volume = read_volume(body)
        if note is None or volume.csi is None or volume.csi.driver != DRIVER:
            continue
        try:
            journal = read_journal(note, volume=volume.name)
            # A volume that was copied for another claim has the annotation, too.
            if not _is_of(journal, volume):
                continue
            first_class = journal.claim["spec"].get("storageClassName", "")
            source = body if direction is Direction.BACK else by_name.get(journal.volume["metadata"]["name"])
            is_open = source is not None or read_mark(body) in KEPT
            if is_open and selection.has(volume, volume.storage_class, first_class):
                yield _continued(volume, body, journal, state, direction, source)
        except InvalidValue as error:
            if selection.has(volume, volume.storage_class):
                yield _refusal(volume, error)


def _is_of(journal: Journal, volume: Volume) -> bool:
    claim = journal.claim["metadata"]
    reference = volume.claim
    return reference is None or (reference.namespace, reference.name) == (claim["namespace"], claim["name"])


def _with_chosen_policy(journal: Journal, source: Volume, mark: Mark | None) -> Journal:
    """With Retain, if the source has it by the choice of an administrator, and not of a migration."""
    recorded = journal.nfs_policy if source.csi is None else journal.policy
    is_retained = source.reclaim_policy is ReclaimPolicy.RETAIN and recorded is not ReclaimPolicy.RETAIN
    if not is_retained or mark in KEPT:
        return journal
    return replace(journal, policy=ReclaimPolicy.RETAIN, volume=kept_volume(journal.volume))


def _continued(
    volume: Volume,
    body: Manifest,
    journal: Journal,
    state: MigrationState,
    direction: Direction,
    source: Manifest | None,
) -> Migration:
    location = locate(volume, TunnelTargets())
    nfs = read_volume(journal.volume)
    source_policy = journal.nfs_policy
    if source is not None:
        found = read_volume(source)
        source_policy = found.reclaim_policy
        journal = _with_chosen_policy(journal, found, read_mark(source))
    if direction is Direction.BACK and nfs.port and location and nfs.nfs and nfs.nfs.server == LOOPBACK:
        leads_to = state.targets.file_system_at(nfs.port)
        if leads_to not in {None, location.file_system_id}:
            raise MigrationRefused(
                f"now leads to {leads_to}",
                field=f"port of volume {nfs.name}",
                value=nfs.port,
                remedy="keep the CSI volume",
            )
    claim = journal.claim["metadata"]
    return Migration(
        namespace=claim["namespace"],
        claim=claim["name"],
        nfs=nfs.name,
        csi=volume.name,
        place=str(location or ""),
        direction=direction,
        source_policy=source_policy,
        source_was_kept=source is not None and read_mark(source) in KEPT,
        journal=journal,
        # It may be about to go, by a way back that was interrupted, and then has to be recreated.
        csi_volume=kept_volume(plain_volume(body)),
    )


def _new(
    state: MigrationState, selection: Selection, begun: set[str], new_class: str | None
) -> Iterator[Migration | MigrationRefusal]:
    for body in state.volumes:
        volume = read_volume(body)
        is_candidate = volume.nfs is not None and volume.phase is VolumePhase.BOUND and not volume.deleting
        if not is_candidate or volume.storage_class == ROOT_CLASS or volume.name in begun:
            continue
        if not selection.has(volume, volume.storage_class):
            continue
        try:
            location = _location(volume, state, is_named=bool(selection.claims or selection.storage_class))
            if location is not None:
                yield _begin(volume, body, location, state, new_class)
        except InvalidValue as error:
            yield _refusal(volume, error)


def _location(volume: Volume, state: MigrationState, *, is_named: bool) -> Location | None:
    """The location of the data; None for a volume of another NFS server that was not requested."""
    assert volume.nfs  # noqa: S101 - only such volumes are checked
    location = locate(volume, state.targets, state.servers)
    if location is not None:
        return location
    root = replace(volume, nfs=NfsSource(server=volume.nfs.server, path="/"))
    if locate(root, state.targets, state.servers) is not None:
        raise MigrationRefused(
            "is not a path that can be migrated",
            field=f"volume {volume.name} spec.nfs.path",
            value=volume.nfs.path,
            remedy="rename the directory, or leave the volume as it is",
        )
    if is_named or volume.is_behind_port:
        # The tunnels of all file systems have the same server.
        by_annotation = f"name the file system with the annotation {FILE_SYSTEM_ID} of the volume"
        raise MigrationRefused(
            "does not name a known file system",
            field=f"volume {volume.name} spec.nfs.server",
            value=volume.nfs.server,
            remedy=by_annotation if volume.is_behind_port else "name the file system with --server",
        )
    return None


def _begin(
    volume: Volume, body: Manifest, location: Location, state: MigrationState, new_class: str | None
) -> Migration:
    assert volume.claim  # noqa: S101 - it is Bound
    key = (volume.claim.namespace, volume.claim.name)
    claim = state.claims.get(key)
    if claim is None or claim["metadata"].get("uid") != volume.claim.uid:
        raise MigrationRefused(
            "does not exist any more", field=f"claim {'/'.join(key)}", remedy="nothing is left to migrate"
        )
    plain = plain_claim(claim)
    own_class = plain["spec"].get("storageClassName", "")
    made = translate(
        volume,
        plain_volume(body),
        plain,
        location,
        storage_class=own_class if new_class is None else new_class,
    )
    return _first(volume, plain, plain_volume(body), location, made)


def _first(
    volume: Volume, claim: Manifest, body: Manifest, location: Location, made: Translation
) -> Migration:
    return Migration(
        namespace=claim["metadata"]["namespace"],
        claim=claim["metadata"]["name"],
        nfs=volume.name,
        csi=csi_name(volume.name),
        place=str(location),
        direction=Direction.FORWARD,
        source_policy=volume.reclaim_policy,
        journal=Journal(claim=claim, volume=body, policy=made.policy),
        csi_volume=made.manifest,
        notes=made.notes,
    )


def _refusal(volume: Volume, error: InvalidValue) -> MigrationRefusal:
    claim = volume.claim
    return MigrationRefusal(
        namespace=claim.namespace if claim else "",
        claim=claim.name if claim else "",
        volume=volume.name,
        error=error,
    )
