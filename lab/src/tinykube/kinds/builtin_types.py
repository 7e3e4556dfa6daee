"""The built-in resource types, a row each, with the facts of kube-apiserver 1.36.

Only types are here that kube-efs, its pages and those who follow them use.
"""

from typing import Any

from tinykube.kinds import access, core, definitions, pods, storage, workloads
from tinykube.kinds.builtin_shapes import shape_of
from tinykube.objects.resources import ALL_VERBS, ResourceType
from tinykube.objects.strategies import Strategy

_STRATEGIES = {
    **access.STRATEGIES,
    **core.STRATEGIES,
    **definitions.STRATEGIES,
    **pods.STRATEGIES,
    **storage.STRATEGIES,
    **workloads.STRATEGIES,
}
_COMMON = Strategy()
_WITHOUT_DELETE_COLLECTION = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")


def builtin_types() -> tuple[ResourceType, ...]:
    """Every built-in type, group by group."""
    return (*_core(), *_workloads(), *_storage(), *_access(), *_rest())


def _type(group_version: str, kind: str, plural: str, *short_names: str, **facts: Any) -> ResourceType:  # noqa: ANN401 - checked by ResourceType
    group, _, version = group_version.rpartition("/")
    return ResourceType(
        decode=shape_of(group, version, kind).decode,
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        short_names=short_names,
        strategy=_STRATEGIES.get((group, kind), _COMMON),
        **facts,
    )


def _core() -> list[ResourceType]:
    return [
        _type("v1", "ConfigMap", "configmaps", "cm"),
        _type("v1", "Endpoints", "endpoints", "ep", creates_on_update=True),
        _type("v1", "Event", "events", "ev", creates_on_update=True),
        _type(
            "v1",
            "Namespace",
            "namespaces",
            "ns",
            namespaced=False,
            has_status=True,
            other_subresources=("finalize",),
            verbs=_WITHOUT_DELETE_COLLECTION,
            returns_deleted=True,
        ),
        _type("v1", "Node", "nodes", "no", namespaced=False, has_status=True),
        _type(
            "v1",
            "PersistentVolumeClaim",
            "persistentvolumeclaims",
            "pvc",
            has_status=True,
            returns_deleted=True,
        ),
        _type(
            "v1",
            "PersistentVolume",
            "persistentvolumes",
            "pv",
            namespaced=False,
            has_status=True,
            returns_deleted=True,
        ),
        _type(
            "v1",
            "Pod",
            "pods",
            "po",
            categories=("all",),
            has_status=True,
            counts_generations=True,
            other_subresources=("binding", "eviction", "exec", "log"),
            returns_deleted=True,
        ),
        _type("v1", "Secret", "secrets"),
        _type(
            "v1",
            "ServiceAccount",
            "serviceaccounts",
            "sa",
            other_subresources=("token",),
            returns_deleted=True,
        ),
        _type(
            "v1",
            "Service",
            "services",
            "svc",
            categories=("all",),
            has_status=True,
            creates_on_update=True,
            returns_deleted=True,
        ),
    ]


def _workloads() -> list[ResourceType]:
    def workload(
        group_version: str, kind: str, plural: str, *short_names: str, scales: bool = False
    ) -> ResourceType:
        return _type(
            group_version,
            kind,
            plural,
            *short_names,
            categories=("all",),
            has_status=True,
            other_subresources=("scale",) if scales else (),
            counts_generations=True,
        )

    stateful_sets = workload("apps/v1", "StatefulSet", "statefulsets", "sts", scales=True)
    return [
        workload("apps/v1", "DaemonSet", "daemonsets", "ds"),
        workload("apps/v1", "Deployment", "deployments", "deploy", scales=True),
        stateful_sets,
        workloads.old_form(stateful_sets),
    ]


def _storage() -> list[ResourceType]:
    group = "storage.k8s.io/v1"
    return [
        _type(
            group,
            "CSIDriver",
            "csidrivers",
            namespaced=False,
            unconditional_update=False,
            returns_deleted=True,
        ),
        _type(
            group, "CSINode", "csinodes", namespaced=False, unconditional_update=False, returns_deleted=True
        ),
        _type(group, "StorageClass", "storageclasses", "sc", namespaced=False, returns_deleted=True),
    ]


def _access() -> list[ResourceType]:
    rbac, authorization = "rbac.authorization.k8s.io/v1", "authorization.k8s.io/v1"

    def review(group_version: str, kind: str) -> ResourceType:
        return _type(group_version, kind, f"{kind.lower()}s", namespaced=False, verbs=("create",))

    return [
        _type(rbac, "ClusterRoleBinding", "clusterrolebindings", namespaced=False, creates_on_update=True),
        _type(rbac, "ClusterRole", "clusterroles", namespaced=False, creates_on_update=True),
        _type(rbac, "RoleBinding", "rolebindings", creates_on_update=True),
        _type(rbac, "Role", "roles", creates_on_update=True),
        review("authentication.k8s.io/v1", "SelfSubjectReview"),
        review(authorization, "SelfSubjectAccessReview"),
        review(authorization, "SubjectAccessReview"),
    ]


def _rest() -> list[ResourceType]:
    admission = "admissionregistration.k8s.io/v1"
    return [
        _type(
            admission,
            "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
            categories=("api-extensions",),
            namespaced=False,
            has_status=True,
            counts_generations=True,
        ),
        _type(
            admission,
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            categories=("api-extensions",),
            namespaced=False,
            counts_generations=True,
        ),
        _type(
            "coordination.k8s.io/v1", "Lease", "leases", creates_on_update=True, unconditional_update=False
        ),
        _type(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            "crd",
            "crds",
            categories=("api-extensions",),
            namespaced=False,
            has_status=True,
            unconditional_update=False,
            counts_generations=True,
        ),
    ]
