"""The built-in resource types, a row each, with the facts of kube-apiserver 1.36.

Only the types are here that programs, pages and readers of this repository use.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tinykube.kinds import core, definitions, pods, storage, workloads
from tinykube.objects.decoding import shape_of
from tinykube.objects.resources import ALL_VERBS, ResourceType, Strategy

_STRATEGIES = {
    **core.STRATEGIES,
    **definitions.STRATEGIES,
    **pods.STRATEGIES,
    **storage.STRATEGIES,
    **workloads.STRATEGIES,
}
_COMMON = Strategy()
_FACTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "cluster": {"namespaced": False},
        "status": {"has_status": True},
        "generations": {"counts_generations": True},
        "versioned": {"unconditional_update": False},
        "returned": {"returns_deleted": True},
    }
)
"""In what a type differs from others; see ``ResourceType``."""


def builtin_types() -> tuple[ResourceType, ...]:
    """Every built-in type, group by group."""
    admission, apps, authorization = "admissionregistration.k8s.io/v1", "apps/v1", "authorization.k8s.io/v1"
    rbac, storage_group = "rbac.authorization.k8s.io/v1", "storage.k8s.io/v1"
    return (
        _type("v1", "ConfigMap", "configmaps cm"),
        _type("v1", "Endpoints", "endpoints ep"),
        _type("v1", "Event", "events ev"),
        _type(
            "v1",
            "Namespace",
            "namespaces ns",
            "cluster status returned",
            subresources="finalize",
            verbs=tuple(verb for verb in ALL_VERBS if verb != "deletecollection"),
        ),
        _type("v1", "Node", "nodes no", "cluster status"),
        _type("v1", "PersistentVolumeClaim", "persistentvolumeclaims pvc", "status returned"),
        _type("v1", "PersistentVolume", "persistentvolumes pv", "cluster status returned"),
        _type(
            "v1",
            "Pod",
            "pods po",
            "status generations returned",
            subresources="binding eviction exec log",
        ),
        _type("v1", "Secret", "secrets"),
        _type("v1", "ServiceAccount", "serviceaccounts sa", "returned", subresources="token"),
        _type("v1", "Service", "services svc", "status returned"),
        _type(apps, "DaemonSet", "daemonsets ds", "status generations"),
        _type(apps, "Deployment", "deployments deploy", "status generations", subresources="scale"),
        _type(apps, "StatefulSet", "statefulsets sts", "status generations", subresources="scale"),
        _type("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets pdb", "status generations versioned"),
        _type(storage_group, "CSIDriver", "csidrivers", "cluster versioned returned"),
        _type(storage_group, "CSINode", "csinodes", "cluster versioned returned"),
        _type(storage_group, "StorageClass", "storageclasses sc", "cluster returned"),
        _type(rbac, "ClusterRoleBinding", "clusterrolebindings", "cluster"),
        _type(rbac, "ClusterRole", "clusterroles", "cluster"),
        _type(rbac, "RoleBinding", "rolebindings"),
        _type(rbac, "Role", "roles"),
        _review("authentication.k8s.io/v1", "SelfSubjectReview"),
        _review(authorization, "SelfSubjectAccessReview"),
        _review(authorization, "SubjectAccessReview"),
        _type(
            admission,
            "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
            "cluster status generations",
        ),
        _type(
            admission,
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            "cluster generations",
        ),
        _type("coordination.k8s.io/v1", "Lease", "leases", "versioned"),
        _type(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "customresourcedefinitions crd crds",
            "cluster status versioned generations",
        ),
    )


def _type(
    group_version: str,
    kind: str,
    names: str,
    facts: str = "",
    *,
    subresources: str = "",
    verbs: tuple[str, ...] = ALL_VERBS,
) -> ResourceType:
    """The type of these names (the plural and the short ones), with these of the facts above."""
    group, _, version = group_version.rpartition("/")
    plural, *short_names = names.split()
    return ResourceType(
        decode=shape_of(group, version, kind).decode,
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        short_names=tuple(short_names),
        verbs=verbs,
        other_subresources=tuple(subresources.split()),
        strategy=_STRATEGIES.get((group, kind), _COMMON),
        **{name: value for fact in facts.split() for name, value in _FACTS[fact].items()},
    )


def _review(group_version: str, kind: str) -> ResourceType:
    return _type(group_version, kind, f"{kind.lower()}s", "cluster", verbs=("create",))
