"""How far a rollout, a takeover or an uninstallation is. No I/O."""

from dataclasses import dataclass
from typing import Final

from kube_efs.operator.injection import SPEC_HASH
from kube_efs.operator.manifests import Manifest

# The generation of a DaemonSet whose rollout was complete at least once. The name is that of library-go.
_STABLE_GENERATION: Final = "storage.openshift.io/stable-generation"
# The same for a Deployment: the API server increases its generation with each annotation, also with this one.
_STABLE_SPEC: Final = "efs-stunnel.gnuthought.com/stable-spec-hash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a takeover or an uninstallation is; a text is empty if it does not apply.

    ``blocked`` is the reason why the operator changes nothing until a user or an administrator acts.
    ``waiting`` is what it waits for. ``controller`` is what only the new controller waits for. ``errors`` are
    those of single objects, which stop nothing else.
    ``removed`` are the components whose workloads are deleted, or are being deleted.
    """

    blocked: str = ""
    waiting: str = ""
    controller: str = ""
    errors: tuple[str, ...] = ()
    removed: frozenset[str] = frozenset()

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.blocked or self.waiting or self.controller or self.errors)


def is_available(workload: Manifest) -> bool:
    """Whether at least one pod of a Deployment or DaemonSet is available, as for OpenShift's operators."""
    status = workload.get("status") or {}
    name = "numberAvailable" if workload["kind"] == "DaemonSet" else "availableReplicas"
    return bool(status.get(name))


def is_rolled_out(workload: Manifest) -> bool:
    """Whether all pods of a Deployment or DaemonSet are available and have the current specification."""
    return not rollout_progress(workload)


def record_of_rollout(workload: Manifest) -> dict[str, str]:
    """The annotation which says that the rollout of the current specification was complete once."""
    metadata = workload["metadata"]
    if workload["kind"] == "DaemonSet":
        return {_STABLE_GENERATION: str(metadata.get("generation"))}
    return {_STABLE_SPEC: str((metadata.get("annotations") or {}).get(SPEC_HASH))}


def is_stable(workload: Manifest) -> bool:
    """Whether the rollout of this specification was complete before.

    Pods that are missing after that are those of new, rebooted or broken nodes, and no rollout.
    """
    annotations = workload["metadata"].get("annotations") or {}
    return record_of_rollout(workload).items() <= annotations.items()


def is_observed(workload: Manifest) -> bool:
    """Whether the status is about the current specification; that of a new workload consists of zeros."""
    generation = (workload.get("status") or {}).get("observedGeneration")
    return bool(workload["metadata"].get("generation") == generation)


def rollout_progress(workload: Manifest) -> str:
    """What the rollout of a Deployment or DaemonSet waits for; empty when it is complete."""
    status = workload.get("status") or {}
    if not is_observed(workload):
        return "the new specification has not been read yet"
    if workload["kind"] == "DaemonSet":
        desired = status.get("desiredNumberScheduled") or 0
        updated = status.get("updatedNumberScheduled") or 0
        unavailable = status.get("numberUnavailable") or 0
    else:
        desired = workload["spec"].get("replicas", 1)
        updated = status.get("updatedReplicas") or 0
        unavailable = max(desired - (status.get("availableReplicas") or 0), 0)
    if unavailable:
        return f"{unavailable} of {desired} pods are not ready"
    if updated < desired:
        return f"{desired - updated} of {desired} pods are of an older version"
    return ""
