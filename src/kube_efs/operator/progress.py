"""How far a rollout, a takeover or an uninstallation is. No I/O."""

from dataclasses import dataclass

from kube_efs.operator.manifests import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a takeover or an uninstallation is; a text is empty if it does not apply.

    ``blocked`` is the reason why the operator changes nothing until a user or an administrator acts.
    ``waiting`` is what it waits for.
    """

    blocked: str = ""
    waiting: str = ""

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.blocked or self.waiting)


def is_available(workload: Manifest) -> bool:
    """Whether at least one pod of a Deployment or DaemonSet is available, as for OpenShift's operators."""
    status = workload.get("status") or {}
    name = "numberAvailable" if workload["kind"] == "DaemonSet" else "availableReplicas"
    return bool(status.get(name))


def is_rolled_out(workload: Manifest) -> bool:
    """Whether all pods of a Deployment or DaemonSet are available and have the current specification."""
    return not rollout_progress(workload)


def rollout_progress(workload: Manifest) -> str:
    """What the rollout of a Deployment or DaemonSet waits for; empty when it is complete."""
    status = workload.get("status") or {}
    if workload["metadata"].get("generation") != status.get("observedGeneration"):
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
