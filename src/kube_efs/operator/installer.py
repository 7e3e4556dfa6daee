"""Applies the desired objects to the cluster, and corrects changes by others.

Every pass goes through all objects, and passes are frequent: each change of a watched object starts one. An
apply of an unchanged object would still cost a request, so the installer remembers two digests of each
object that it applied: of the desired object, and of the object in the cluster after the apply, without its
status. While both are the same, it does nothing. A restart of the operator forgets the digests. Its first
pass applies every object again, and the API server changes nothing where nothing differs.

An apply with force takes over the fields that the manifest has, but leaves fields that only others set. In a
workload such a field can be a container or a node selector, so the installer first replaces the whole
specification. It keeps what ``kubectl rollout restart`` wrote: without that annotation, the pods would be
replaced once more.

A faulty version must stop at the first tunnel. The driver of the nodes is therefore updated only after the
tunnels, and another image of the controller follows both: all its pods are replaced at once, and without them
nothing is provisioned or removed. Without another image, changes of the controller do not wait, such as a
proxy without which it does not reach AWS. A changed Secret ends the wait: the keys of the earlier one may be
deleted already.

A DaemonSet that must be recreated is deleted without its pods, so that their mounts stay: the new DaemonSet
then replaces them one node at a time.

Kubernetes numbers the templates of a DaemonSet, and labels pods with the number. A pod with the number of the
current template counts as updated, whatever it runs. A new DaemonSet would begin at 1, as the deleted one,
and would never replace such pods. It therefore begins at the time of its creation.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog
from lightkube.types import CascadeType

from kube_efs.model.errors import KubeConflict, KubeError, KubeNotFound
from kube_efs.operator.cluster_facts import CREDENTIALS_SECRET, PROXY_VARIABLES
from kube_efs.operator.desired_objects import Component, component_of
from kube_efs.operator.injection import DEPENDENCY_PREFIX, SPEC_HASH, dependency_key
from kube_efs.operator.kinds import (
    KINDS,
    MANAGED_BY,
    WORKLOADS,
    ObjectReference,
    describe_finalizers,
    has_labels,
    reference_of,
)
from kube_efs.operator.manifests import Manifest, digest
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import FIELD_MANAGER, ObjectClient
from kube_efs.operator.progress import is_rolled_out, is_stable, record_of_rollout

log = structlog.get_logger(__name__)

RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"  # written by kubectl rollout restart
# Kubernetes reads it when the DaemonSet is created, and shows the current number in it after that.
_TEMPLATE_NUMBER: Final = "deprecated.daemonset.template.generation"
# These managers may own fields of a specification: replicas, revisions, and the annotation of a restart.
_ACCEPTED_MANAGERS: Final = frozenset({FIELD_MANAGER, "kube-controller-manager", "kubectl-rollout"})
# The API server writes these fields of the metadata.
_SERVER_FIELDS: Final = frozenset(
    {"managedFields", "resourceVersion", "generation", "creationTimestamp", "selfLink", "uid"}
)
# What must be rolled out before a component is updated.
_ROLLED_OUT_BEFORE: Final = {
    Component.NODE: (Component.TUNNEL,),
    Component.CONTROLLER: (Component.TUNNEL, Component.NODE),
}
_NAMES: Final = {Component.TUNNEL: "all tunnels", Component.NODE: "the drivers of all nodes"}
_CASCADES: Final = {"DaemonSet": CascadeType.ORPHAN, "Deployment": CascadeType.FOREGROUND}

# Records that an object was ``Created``, ``Updated`` or ``Deleted``.
RecordChange = Callable[[ObjectReference, str], None]


@dataclass(slots=True)
class InstallResult:
    """The result of one pass: objects and workloads in the cluster, errors, and what the pass waits for."""

    workloads: dict[Component, Manifest] = field(default_factory=dict)
    errors: defaultdict[Component, list[str]] = field(default_factory=lambda: defaultdict(list))
    waiting: defaultdict[Component, list[str]] = field(default_factory=lambda: defaultdict(list))
    missing_kinds: set[str] = field(default_factory=set)
    objects: dict[Component, list[Manifest]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, slots=True)
class _Applied:
    """The digests of a desired object, and of the object in the cluster after the apply."""

    desired: str
    live: str


class Installer:
    """Applies objects that differ; ``record_change`` is called for each object that changed."""

    def __init__(
        self,
        objects: ObjectClient,
        cache: ObjectCache,
        record_change: RecordChange,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._objects = objects
        self._cache = cache
        self._record_change = record_change
        self._now = now
        self._applied: dict[ObjectReference, _Applied] = {}
        self._absent: set[ObjectReference] = set()

    async def install(self, desired: Iterable[Manifest]) -> InstallResult:
        """Apply all objects. An error of one object does not stop the others; never raises KubeError."""
        result = InstallResult()
        for manifest in desired:
            component = component_of(manifest)
            try:
                live = self._find_unchanged(manifest) or await self._ensure(manifest, result)
            except KubeNotFound as error:
                if KINDS[manifest["kind"]].optional:
                    result.missing_kinds.add(manifest["kind"])
                else:
                    result.errors[component].append(str(error))
                continue
            except KubeError as error:
                result.errors[component].append(str(error))
                live = self._cache.get(reference_of(manifest))
            if live is not None:
                result.objects[component].append(live)
                if manifest["kind"] in WORKLOADS:
                    result.workloads[component] = live
                    await self._record_rollout(live, component, result)
        return result

    async def remove(self, unrequested: Iterable[Manifest], result: InstallResult) -> None:
        """Delete those of these objects that this operator installed; never raises KubeError."""
        for manifest in unrequested:
            reference = reference_of(manifest)
            if reference in self._absent:
                continue
            try:
                live = await self._objects.get(reference)
                if live is not None and has_labels(live, MANAGED_BY):
                    await self._delete(live, CascadeType.BACKGROUND)
            except KubeError as error:
                result.errors[component_of(manifest)].append(str(error))
            else:
                self._absent.add(reference)

    async def find_replacements(self, desired: Iterable[Manifest]) -> Mapping[Component, str]:
        """The components whose pods an install of these objects replaces, and why; never raises KubeError."""
        found: dict[Component, str] = {}
        for manifest in desired:
            if manifest["kind"] not in WORKLOADS:
                continue
            reference = reference_of(manifest)
            # The install reports the error of an object that cannot be read.
            with suppress(KubeError):
                live = self._cache.get(reference) or await self._objects.get(reference)
                if live is not None and _spec_hash(live) not in {"", _spec_hash(manifest)}:
                    reasons = describe_changes(live, manifest)
                    found[component_of(manifest)] = f"{reasons}, so the pods of {reference} are replaced"
        return found

    def forget(self) -> None:
        """Check every object again in the next pass: others may have changed any of them."""
        self._applied.clear()
        self._absent.clear()

    def _find_unchanged(self, desired: Manifest) -> Manifest | None:
        """The object in the cluster, if neither it nor the desired object changed since the last apply."""
        reference = reference_of(desired)
        live, applied = self._cache.get(reference), self._applied.get(reference)
        if live is None or live["metadata"].get("deletionTimestamp"):
            return None
        return live if applied == _Applied(digest(desired), digest_of_live(live)) else None

    async def _ensure(self, desired: Manifest, result: InstallResult) -> Manifest | None:
        """The object in the cluster after this pass; None while it cannot exist yet."""
        reference, component = reference_of(desired), component_of(desired)
        live = await self._objects.get(reference)
        if live is None:
            return await self._apply(None, desired)
        if live["metadata"].get("deletionTimestamp"):
            message = f"{reference} is being removed, and is then created again"
            finalizers = describe_finalizers(live)
            if finalizers:
                result.errors[component].append(f"{message}; {finalizers}")
            else:
                result.waiting[component].append(message)
            return None
        if KINDS[reference.kind].create_only:
            return live
        waiting = _describe_wait(live, desired, result)
        if waiting:
            result.waiting[component].append(waiting)
            return live
        if must_recreate(live, desired):
            log.info("object-recreated", object=str(reference))
            await self._delete(live, _CASCADES.get(reference.kind, CascadeType.BACKGROUND))
            if reference.kind in WORKLOADS:
                # Its deletion takes time, and the next pass creates it.
                result.waiting[component].append(f"{reference} is recreated")
                return None
            live = None
        return await self._apply(live, desired)

    async def _apply(self, live: Manifest | None, desired: Manifest) -> Manifest:
        reference = reference_of(desired)
        known = foreign_fields(live) if live else []
        if live is not None and known:
            known = foreign_fields(await self._objects.replace(replacement(live, desired)))
        is_new_set = live is None and reference.kind == "DaemonSet"
        applied = await self._objects.apply(self._numbered(desired) if is_new_set else desired)
        if all(any(_covers(fields, one) for fields in known) for one in foreign_fields(applied)):
            self._applied[reference] = _Applied(digest(desired), digest_of_live(applied))
        else:
            # Someone edited it after it was read. The next pass, which that edit starts, replaces it.
            self._applied.pop(reference, None)
        self._cache.add(applied)
        if live is None:
            self._record_change(reference, "Created")
        elif live["metadata"].get("resourceVersion") != applied["metadata"].get("resourceVersion"):
            self._record_change(reference, "Updated")
        return applied

    def _numbered(self, daemon_set: Manifest) -> Manifest:
        # Kubernetes would begin again at 1, and would count pods of a deleted DaemonSet with that number as
        # updated.
        metadata = daemon_set["metadata"]
        annotations = {**(metadata.get("annotations") or {}), _TEMPLATE_NUMBER: str(int(self._now()))}
        return {**daemon_set, "metadata": {**metadata, "annotations": annotations}}

    async def _record_rollout(self, live: Manifest, component: Component, result: InstallResult) -> None:
        """Record in the workload that the rollout of its current specification is complete."""
        if is_stable(live) or not is_rolled_out(live):
            return
        reference, metadata = reference_of(live), live["metadata"]
        recorded = record_of_rollout(live)
        # With the version, so that the record never is about a specification that nobody has seen roll out.
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": recorded}}
        try:
            with suppress(KubeConflict, KubeNotFound):
                after = await self._objects.merge_patch(reference, patch)
                self._cache.add(after)
                applied = self._applied.get(reference)
                # After a failed pass it may be the object as a user has edited it, which is not as desired.
                if applied is not None and applied.live == digest_of_live(live):
                    self._applied[reference] = replace(applied, live=digest_of_live(after))
                result.workloads[component] = after
        except KubeError as error:
            result.errors[component].append(str(error))

    async def _delete(self, live: Manifest, cascade: CascadeType) -> None:
        reference = reference_of(live)
        await self._objects.delete(live, cascade=cascade)
        self._cache.remove(reference)
        self._record_change(reference, "Deleted")


def _describe_wait(live: Manifest, desired: Manifest, result: InstallResult) -> str:
    """What an update of this object must wait for in this pass; empty if it is possible now."""
    component, reference = component_of(desired), reference_of(desired)
    # A workload without the annotation is not from this operator, and is updated at once.
    if component not in _ROLLED_OUT_BEFORE or _spec_hash(live) in {"", _spec_hash(desired)}:
        return ""
    if component is Component.CONTROLLER and not _waits_with_its_image(live, desired):
        return ""
    pending = [one for one in _ROLLED_OUT_BEFORE[component] if not _is_updated(one, result)]
    if not pending:
        return ""
    condition = f"{' and '.join(_NAMES[one] for one in pending)} are updated and ready"
    if component is Component.CONTROLLER:
        return f"{reference} keeps the image {_images(live['spec']['template'])[0]} until {condition}"
    return f"{reference} is updated when {condition}"


def _waits_with_its_image(live: Manifest, desired: Manifest) -> bool:
    """Whether the update of the controller is one to another image, with the same credentials."""
    before, after = live["spec"]["template"], desired["spec"]["template"]
    key = dependency_key(live["metadata"]["namespace"], CREDENTIALS_SECRET, "secret")
    has_same_credentials = _dependencies(before).get(key) == _dependencies(after).get(key)
    return has_same_credentials and _images(before) != _images(after)


def _is_updated(component: Component, result: InstallResult) -> bool:
    """Whether this pass has found the component with its desired specification, once rolled out completely.

    Pods that are missing after that are those of nodes, and need not stop the next component for days.
    """
    workload = result.workloads.get(component)
    if workload is None or result.errors.get(component) or result.waiting.get(component):
        # After a failed update, all pods may be ready, but with the earlier specification.
        return False
    return is_stable(workload) or is_rolled_out(workload)


def _spec_hash(workload: Manifest) -> str:
    return str((workload["metadata"].get("annotations") or {}).get(SPEC_HASH) or "")


def describe_changes(live: Manifest, desired: Manifest) -> str:
    """Which parts of the pods of a workload change, in words."""
    before, after = (one["spec"]["template"] for one in (live, desired))
    old, new = _environment(before), _environment(after)
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    found = [
        "the proxy" if changed & PROXY_VARIABLES else "",
        "the trusted CAs or the credentials" if _dependencies(before) != _dependencies(after) else "",
        "the image" if _images(before) != _images(after) else "",
        "settings" if changed - PROXY_VARIABLES else "",
    ]
    return " and ".join(filter(None, found)) + " changed" if any(found) else "the manifests changed"


def _dependencies(template: Manifest) -> dict[str, str]:
    annotations = template["metadata"].get("annotations") or {}
    return {name: value for name, value in annotations.items() if name.startswith(DEPENDENCY_PREFIX)}


def _environment(template: Manifest) -> dict[str, str]:
    """The variables of the first container, which the operator sets in all containers alike.

    References to other objects have no value here, because the API server adds defaults to them.
    """
    variables = template["spec"]["containers"][0].get("env") or ()
    return {one["name"]: one.get("value") or "" for one in variables}


def _images(template: Manifest) -> list[str]:
    return [one["image"] for one in template["spec"]["containers"]]


def digest_of_live(live: Manifest) -> str:
    """The digest of everything that users and controllers may change, except the status."""
    metadata = {name: value for name, value in live["metadata"].items() if name not in _SERVER_FIELDS}
    content = {name: value for name, value in live.items() if name not in {"metadata", "status"}}
    return digest({**content, "metadata": metadata})


def must_recreate(live: Manifest, desired: Manifest) -> bool:
    """Whether a field differs that the API server does not change in an existing object."""
    for path in KINDS[desired["kind"]].immutable:
        before, after = _at(live, path), _at(desired, path)
        if after is not None and _without_empty(before) != _without_empty(after):
            return True
    return False


def foreign_fields(live: Manifest) -> list[Manifest]:
    """The fields that each other manager owns, of those with fields in the specification of a workload.

    A manager that wrote the desired values keeps its fields also after the workload is replaced.
    """
    if live["kind"] not in WORKLOADS:
        return []
    return [
        entry["fieldsV1"]
        for entry in live["metadata"].get("managedFields") or ()
        if entry.get("manager") not in _ACCEPTED_MANAGERS
        and not entry.get("subresource")
        and "f:spec" in (entry.get("fieldsV1") or {})
    ]


def _covers(known: Manifest, fields: Manifest) -> bool:
    """Whether all these fields are among the known ones, in the form of ``fieldsV1``."""
    return all(name in known and _covers(known[name], inner) for name, inner in fields.items())


def replacement(live: Manifest, desired: Manifest) -> Manifest:
    """The workload with the desired specification, its own metadata, and the annotation of a restart."""
    spec = json.loads(json.dumps(desired["spec"]))
    restarted = _at(live, ("spec", "template", "metadata", "annotations", RESTARTED))
    if restarted:
        spec["template"]["metadata"].setdefault("annotations", {})[RESTARTED] = restarted
    metadata = {name: value for name, value in live["metadata"].items() if name != "managedFields"}
    return {**live, "metadata": metadata, "spec": spec}


def _at(node: Manifest, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - any JSON
    found: Any = node
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _without_empty(node: Any) -> Any:  # noqa: ANN401 - any JSON
    """Without the empty fields that the API server adds to a reference or a selector."""
    return {name: value for name, value in node.items() if value} if isinstance(node, Mapping) else node
