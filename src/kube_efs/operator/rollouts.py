"""How far a Deployment or DaemonSet is, by the rules of OpenShift's operators. No I/O."""

from kube_efs.operator.manifests import Manifest


def is_available(workload: Manifest) -> bool:
    """Whether at least one of its pods works."""
    status = workload.get("status") or {}
    name = "numberAvailable" if workload["kind"] == "DaemonSet" else "availableReplicas"
    return bool(status.get(name))


def has_rolled_out(workload: Manifest) -> bool:
    """Whether all its pods are of the present specification, and work."""
    return not progress(workload)


def progress(workload: Manifest) -> str:
    """What is still to come, in words; empty when nothing is."""
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
