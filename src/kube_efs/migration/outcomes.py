"""The result of each claim, for users and programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from rich.console import Group, RenderableType

from kube_efs.migration.errors import ClaimInUse
from kube_efs.migration.plan import Migration, MigrationRefusal
from kube_efs.migration.steps import MigrationStep, Wait
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.errors import KubeEfsError
from kube_efs.report.tables import line_of, table_of, text_of


class State(StrEnum):
    """The state of the migration of a claim."""

    TO_DO = "to do"
    DONE = "done"
    IN_USE = "in use"
    FAILED = "failed"

    @property
    def is_well(self) -> bool:
        """Whether nothing prevents the migration."""
        return self in {State.TO_DO, State.DONE}


_COLOURS = {State.TO_DO: "", State.DONE: "green", State.IN_USE: "yellow", State.FAILED: "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationOutcome:
    """One claim; ``next_step`` is the first change, ``reason`` is why it is not possible."""

    namespace: str
    claim: str
    source: str
    target: str
    data: str
    reclaim_policy: str
    state: State
    next_step: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()


def planned(
    migration: Migration, decision: MigrationStep | Wait | None, policy: ReclaimPolicy
) -> MigrationOutcome:
    """The claim must still be migrated; its new volume gets that reclaim policy."""
    if decision is None:
        return done(migration, policy)
    text = f"wait until {decision.for_what}" if isinstance(decision, Wait) else str(decision)
    return replace(_outcome(migration, State.TO_DO, next_step=text), reclaim_policy=str(policy))


def done(migration: Migration, policy: ReclaimPolicy) -> MigrationOutcome:
    """The claim is migrated; its new volume has that reclaim policy."""
    return replace(_outcome(migration, State.DONE), reclaim_policy=str(policy))


def failed(migration: Migration, error: KubeEfsError) -> MigrationOutcome:
    """The migration failed or is prevented."""
    state = State.IN_USE if isinstance(error, ClaimInUse) else State.FAILED
    return _outcome(migration, state, reason=str(error))


def _outcome(
    migration: Migration, state: State, *, next_step: str = "", reason: str = ""
) -> MigrationOutcome:
    move = migration.move
    return MigrationOutcome(
        namespace=move.namespace,
        claim=move.claim,
        source=move.source,
        target=move.target,
        data=migration.place,
        reclaim_policy=str(move.policy),
        state=state,
        next_step=next_step,
        reason=reason,
        notes=migration.notes,
    )


def refused(refusal: MigrationRefusal) -> MigrationOutcome:
    """The claim cannot be migrated."""
    return MigrationOutcome(
        namespace=refusal.namespace,
        claim=refusal.claim,
        source=refusal.volume,
        target="",
        data="",
        reclaim_policy="",
        state=State.FAILED,
        reason=str(refusal.error),
    )


def as_json(outcomes: Sequence[MigrationOutcome]) -> dict[str, Any]:
    """The document of ``--output json``."""
    return {"ok": all(one.state.is_well for one in outcomes), "claims": [asdict(one) for one in outcomes]}


def render(outcomes: Sequence[MigrationOutcome]) -> RenderableType:
    """A table, and below it notes about single claims."""
    columns = ["claim", "from", "to", "data", "policy", "state", "next"]
    rows = [
        (
            f"{one.namespace}/{one.claim}",
            one.source,
            one.target,
            one.data,
            one.reclaim_policy,
            text_of(one.state, style=_COLOURS[one.state]),
            one.next_step,
        )
        for one in outcomes
    ]
    table = table_of("Claims", columns, rows)
    reasons = [line_of(f"! {one.reason}", style="red") for one in outcomes if one.reason]
    notes = [line_of(f"  {one.namespace}/{one.claim}: {note}") for one in outcomes for note in one.notes]
    return Group(table, *notes, *reasons)
