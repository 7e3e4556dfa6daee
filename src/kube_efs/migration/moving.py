"""Migrates one claim."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from kube_efs.migration.cluster import MigrationStore
from kube_efs.migration.errors import ClaimInUse, MoveStalled
from kube_efs.migration.plan import Migration
from kube_efs.migration.steps import MigrationStep, Wait, decide
from kube_efs.model.errors import KubeAlreadyExists, KubeConflict, KubeNotFound

log = structlog.get_logger(__name__)

# What Kubernetes does by itself, such as binding, takes it a second when it has nothing else to do.
PATIENCE_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.25
_USERS_SECONDS: Final = 1.0
# A move has some ten steps; many more mean that another client reverts them.
_MOST_STEPS: Final = 32


async def move_claim(
    store: MigrationStore,
    migration: Migration,
    tell: Callable[[str], None],
    *,
    wait_seconds: float = 0.0,
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Migrate the claim, from any state of an earlier attempt.

    ``tell`` hears what is done or waited for. Pods that use the claim are waited for ``wait_seconds``. Raises
    ClaimInUse, MoveStalled, MigrationRefused and KubeError; then, as after a kill, nothing is lost and the
    same call continues.
    """
    await _wait_for_users(store, migration, tell, wait_seconds)
    steps = 0
    while steps < _MOST_STEPS:
        step = await _next_step(store, migration, tell, patience_seconds)
        if step is None:
            return
        steps += 1
    raise MoveStalled(
        "is repeatedly reverted by another client",
        field=f"claim {migration.namespace}/{migration.claim}",
        remedy="find out what changes the claim or its volumes, and stop it",
    )


async def _wait_for_users(
    store: MigrationStore, migration: Migration, tell: Callable[[str], None], seconds: float
) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                look = await store.look(migration)
                try:
                    decide(migration.move, look.seen)
                except ClaimInUse as error:
                    tell(f"wait for pods {error.value}")
                    await asyncio.sleep(_USERS_SECONDS)
                else:
                    return


async def _next_step(
    store: MigrationStore, migration: Migration, tell: Callable[[str], None], patience_seconds: float
) -> MigrationStep | None:
    """Make the next change when it is possible; None if none is left."""
    waiting = ""
    try:
        async with asyncio.timeout(patience_seconds):
            while True:
                look = await store.look(migration)
                decision = decide(migration.move, look.seen)
                if not isinstance(decision, Wait):
                    break
                if decision.for_what != waiting:
                    waiting = decision.for_what
                    tell(f"wait until {waiting}")
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise MoveStalled(
            f"was not completed within {patience_seconds:.0f} seconds",
            field=f"claim {migration.namespace}/{migration.claim}",
            value=waiting or "an answer of the API server",
            remedy="resolve that, then run the same command again",
        ) from None
    if decision is not None:
        tell(decision)
        # Another client was faster, maybe an earlier attempt whose answer got lost: check again.
        with suppress(KubeAlreadyExists, KubeConflict, KubeNotFound):
            await store.take(decision, migration, look)
        log.debug("migration-step", claim=f"{migration.namespace}/{migration.claim}", step=str(decision))
    return decision
