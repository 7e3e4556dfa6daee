"""Whether an object is still what was applied. No I/O."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from kube_efs.operator.kinds import KINDS, WORKLOADS
from kube_efs.operator.manifests import Manifest

FIELD_MANAGER: Final = "kube-efs-operator"
RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"  # of kubectl rollout restart, which users may do
# What these write is theirs: counts, revisions, and the annotation of a restart.
_WELCOME: Final = frozenset({FIELD_MANAGER, "kube-controller-manager", "kubectl-rollout"})
# What the server writes, and what says nothing about the content.
_BY_SERVER: Final = frozenset(
    {"managedFields", "resourceVersion", "generation", "creationTimestamp", "selfLink", "uid"}
)


def digest(manifest: Manifest) -> str:
    """A digest of the content, in hexadecimal."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def fingerprint(live: Manifest) -> str:
    """The digest of all that users and controllers may have changed; statuses are ignored."""
    metadata = {name: value for name, value in live["metadata"].items() if name not in _BY_SERVER}
    content = {name: value for name, value in live.items() if name not in {"metadata", "status"}}
    return digest({**content, "metadata": metadata})


def must_recreate(live: Manifest, wanted: Manifest) -> bool:
    """Whether a field differs that no server changes in an object that exists."""
    for path in KINDS[wanted["kind"]].immutable:
        now, then = _at(live, path), _at(wanted, path)
        if then is not None and _plain(now) != _plain(then):
            return True
    return False


def has_foreign_fields(live: Manifest) -> bool:
    """Whether another manager owns fields of a workload, which applying would leave there."""
    if live["kind"] not in WORKLOADS:
        return False
    return any(
        entry.get("manager") not in _WELCOME
        and not entry.get("subresource")
        and "f:spec" in (entry.get("fieldsV1") or {})
        for entry in live["metadata"].get("managedFields") or ()
    )


def replacement(live: Manifest, wanted: Manifest) -> Manifest:
    """The workload with the wanted specification whole, and all metadata; a restart stays asked for."""
    spec = json.loads(json.dumps(wanted["spec"]))
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


def _plain(node: Any) -> Any:  # noqa: ANN401 - any JSON
    """Without what the server adds to a reference or a selector that is empty."""
    return {name: value for name, value in node.items() if value} if isinstance(node, Mapping) else node
