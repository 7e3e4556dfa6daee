"""Bringing the wanted objects into the cluster, and back to what they should be."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog
from lightkube.types import CascadeType

from kube_efs.model.errors import KubeError, KubeNotFound
from kube_efs.operator.conditions import Component
from kube_efs.operator.desired_objects import component_of
from kube_efs.operator.drift import (
    digest,
    fingerprint,
    has_foreign_fields,
    must_recreate,
    replacement,
)
from kube_efs.operator.injection import MANAGED_BY, SPEC_HASH
from kube_efs.operator.kinds import KINDS, WORKLOADS, ObjectReference, reference_of
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.rollouts import has_rolled_out

log = structlog.get_logger(__name__)

# ``kind`` and what happened to the object: Created, Updated or Deleted.
Tell = Callable[[ObjectReference, str], None]


@dataclass(slots=True)
class InstallResult:
    """The result of one pass, by component: the workloads, errors, and what the pass waits for."""

    workloads: dict[Component, Manifest] = field(default_factory=dict)
    errors: defaultdict[Component, list[str]] = field(default_factory=lambda: defaultdict(list))
    waits: defaultdict[Component, list[str]] = field(default_factory=lambda: defaultdict(list))
    missing_kinds: set[str] = field(default_factory=set)
    objects: dict[Component, list[Manifest]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, slots=True)
class _Written:
    """What was applied, and what the object was like after it."""

    digest: str
    fingerprint: str


class Installer:
    """Applies what differs, and only that; ``tell`` hears of each object that was changed."""

    def __init__(self, cluster: ObjectClient, cache: ObjectCache, tell: Tell) -> None:
        self._cluster = cluster
        self._cache = cache
        self._tell = tell
        self._written: dict[ObjectReference, _Written] = {}
        self._absent: set[ObjectReference] = set()

    async def install(self, wanted: Iterable[Manifest]) -> InstallResult:
        """Bring all objects in place, whatever becomes of single ones; never raises KubeError."""
        report = InstallResult()
        for manifest in wanted:
            component = component_of(manifest)
            try:
                live = await self._bring(manifest, report)
            except KubeNotFound as error:
                if KINDS[manifest["kind"]].optional:
                    report.missing_kinds.add(manifest["kind"])
                else:
                    report.errors[component].append(str(error))
                continue
            except KubeError as error:
                report.errors[component].append(str(error))
                continue
            if live is not None:
                report.objects[component].append(live)
                if manifest["kind"] in WORKLOADS:
                    report.workloads[component] = live
        return report

    async def withdraw(self, unasked: Iterable[Manifest]) -> None:
        """Remove those of these objects that this operator installed; raises KubeError."""
        for manifest in unasked:
            reference = reference_of(manifest)
            if reference in self._absent:
                continue
            live = await self._cluster.get(reference)
            labels = (live or {"metadata": {}})["metadata"].get("labels") or {}
            if MANAGED_BY.items() <= labels.items():
                await self._cluster.delete(reference)
                self._cache.forget(reference)
                self._tell(reference, "Deleted")
            self._absent.add(reference)

    def forget(self) -> None:
        """Nothing is known to be in place any more."""
        self._written.clear()
        self._absent.clear()

    async def _bring(self, wanted: Manifest, report: InstallResult) -> Manifest | None:
        """The object as it is now; None while it cannot be there yet."""
        reference, component = reference_of(wanted), component_of(wanted)
        live = self._cache.find(reference)
        if live is not None and self._is_in_place(live, wanted):
            return live
        live = await self._cluster.get(reference)
        if live is not None and live["metadata"].get("deletionTimestamp"):
            report.waits[component].append(f"{reference} is being removed")
            return None
        if live is not None and KINDS[reference.kind].create_only:
            return live
        if live is not None and self._has_to_wait(component, live, wanted, report):
            report.waits[component].append(f"{reference} is updated when all tunnels are ready")
            return live
        if live is not None and must_recreate(live, wanted):
            await self._remove(reference)
            if reference.kind in WORKLOADS:
                report.waits[component].append(f"{reference} is recreated")
                return None
            live = None
        return await self._write(live, wanted)

    def _is_in_place(self, live: Manifest, wanted: Manifest) -> bool:
        written = self._written.get(reference_of(wanted))
        return written == _Written(digest(wanted), fingerprint(live)) and not live["metadata"].get(
            "deletionTimestamp"
        )

    @staticmethod
    def _has_to_wait(component: Component, live: Manifest, wanted: Manifest, report: InstallResult) -> bool:
        """Whether the driver of the nodes must stay as it is: not all tunnels have come so far yet."""
        tunnel = report.workloads.get(Component.TUNNEL)
        rolls = tunnel is None or not has_rolled_out(tunnel)
        return component is Component.NODE and rolls and _spec_hash(live) not in {"", _spec_hash(wanted)}

    async def _write(self, live: Manifest | None, wanted: Manifest) -> Manifest:
        reference = reference_of(wanted)
        if live is not None and has_foreign_fields(live):
            await self._cluster.replace(replacement(live, wanted))
        applied = await self._cluster.apply(wanted)
        self._written[reference] = _Written(digest(wanted), fingerprint(applied))
        self._cache.note(applied)
        if live is None:
            self._tell(reference, "Created")
        elif live["metadata"].get("resourceVersion") != applied["metadata"].get("resourceVersion"):
            self._tell(reference, "Updated")
        return applied

    async def _remove(self, reference: ObjectReference) -> None:
        """Delete the object to recreate it; pods of a DaemonSet stay, because mounts depend on them."""
        cascades = {"DaemonSet": CascadeType.ORPHAN, "Deployment": CascadeType.FOREGROUND}
        log.info("object-made-anew", object=str(reference))
        await self._cluster.delete(reference, cascade=cascades.get(reference.kind, CascadeType.BACKGROUND))
        self._cache.forget(reference)
        self._tell(reference, "Deleted")


def _spec_hash(workload: Manifest) -> str:
    return str((workload["metadata"].get("annotations") or {}).get(SPEC_HASH) or "")
