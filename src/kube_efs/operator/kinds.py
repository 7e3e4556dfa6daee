"""The kinds of the objects of an installation, the rules for each kind, and the labels of the objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lightkube.core.resource import NamespacedResource, Resource
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.resources import (
    admissionregistration_v1,
    apiextensions_v1,
    apps_v1,
    core_v1,
    policy_v1,
    rbac_authorization_v1,
    storage_v1,
)

from kube_efs.operator.manifests import Manifest

# The label of the objects that the operator installed. It never changes or removes others, except what an
# older operator left.
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "kube-efs-operator"}
_PART_OF: Final = {"app.kubernetes.io/part-of": "kube-efs"}

DRIVER_GROUP: Final = "operator.openshift.io"
DRIVER_KIND: Final = "ClusterCSIDriver"
ClusterCSIDriver = create_global_resource(DRIVER_GROUP, "v1", DRIVER_KIND, "clustercsidrivers")
CredentialsRequest = create_namespaced_resource(
    "cloudcredential.openshift.io", "v1", "CredentialsRequest", "credentialsrequests"
)
CloudCredential = create_global_resource("operator.openshift.io", "v1", "CloudCredential", "cloudcredentials")
ApiServer = create_global_resource("config.openshift.io", "v1", "APIServer", "apiservers")
Infrastructure = create_global_resource("config.openshift.io", "v1", "Infrastructure", "infrastructures")
Proxy = create_global_resource("config.openshift.io", "v1", "Proxy", "proxies")
SecurityContextConstraints = create_global_resource(
    "security.openshift.io", "v1", "SecurityContextConstraints", "securitycontextconstraints"
)
ServiceMonitor = create_namespaced_resource(
    "monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"
)
PodMonitor = create_namespaced_resource("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors")
PrometheusRule = create_namespaced_resource(
    "monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"
)


class ObjectReference(NamedTuple):
    """The kind, namespace and name of an object; ``namespace`` is empty for cluster-scoped kinds."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of object.

    ``optional``: a cluster may not have the kind. ``immutable``: the fields that the API server does not
    change; the object must be recreated. ``create_only``: the operator creates the object and never
    changes it, because it then belongs to the administrator. ``in_any_namespace``: the objects are not in
    the namespace of the installation.
    """

    resource: type[Resource]
    optional: bool = False
    immutable: tuple[tuple[str, ...], ...] = ()
    create_only: bool = False
    in_any_namespace: bool = False

    @property
    def is_namespaced(self) -> bool:
        """Whether its objects are in namespaces."""
        return issubclass(self.resource, NamespacedResource)

    def namespace(self, own: str) -> str | None:
        """Where the objects of an installation in ``own`` are: ``*`` is anywhere; None if cluster-scoped."""
        if not self.is_namespaced:
            return None
        return "*" if self.in_any_namespace else own


_SELECTOR = (("spec", "selector"),)
_ROLE = (("roleRef",),)

# In the order of removal. The uninstaller removes the workloads first, in an order of its own.
KINDS: Final[Mapping[str, Kind]] = {
    "ServiceMonitor": Kind(resource=ServiceMonitor, optional=True),
    "PodMonitor": Kind(resource=PodMonitor, optional=True),
    "PrometheusRule": Kind(resource=PrometheusRule, optional=True),
    "Deployment": Kind(resource=apps_v1.Deployment, immutable=_SELECTOR),
    "DaemonSet": Kind(resource=apps_v1.DaemonSet, immutable=_SELECTOR),
    "CredentialsRequest": Kind(resource=CredentialsRequest, optional=True, in_any_namespace=True),
    # Kubernetes has these two kinds since 1.30.
    "ValidatingAdmissionPolicyBinding": Kind(
        resource=admissionregistration_v1.ValidatingAdmissionPolicyBinding, optional=True
    ),
    "ValidatingAdmissionPolicy": Kind(
        resource=admissionregistration_v1.ValidatingAdmissionPolicy, optional=True
    ),
    "PodDisruptionBudget": Kind(resource=policy_v1.PodDisruptionBudget),
    "Service": Kind(resource=core_v1.Service),
    "ConfigMap": Kind(resource=core_v1.ConfigMap),
    "RoleBinding": Kind(resource=rbac_authorization_v1.RoleBinding, immutable=_ROLE),
    "ClusterRoleBinding": Kind(resource=rbac_authorization_v1.ClusterRoleBinding, immutable=_ROLE),
    "Role": Kind(resource=rbac_authorization_v1.Role),
    "ClusterRole": Kind(resource=rbac_authorization_v1.ClusterRole),
    "SecurityContextConstraints": Kind(resource=SecurityContextConstraints, optional=True),
    "ServiceAccount": Kind(resource=core_v1.ServiceAccount),
    "StorageClass": Kind(resource=storage_v1.StorageClass, create_only=True),
    "CustomResourceDefinition": Kind(resource=apiextensions_v1.CustomResourceDefinition),
    "CSIDriver": Kind(
        resource=storage_v1.CSIDriver,
        immutable=(("spec", "attachRequired"), ("spec", "volumeLifecycleModes")),
    ),
}
# Volumes and users refer to these objects, so they stay when the driver is removed.
KEPT_AFTER_UNINSTALL: Final = frozenset({"StorageClass", "CustomResourceDefinition"})
WORKLOADS: Final = frozenset({"DaemonSet", "Deployment"})
# Kubernetes and OpenShift remove these when their own work for the deletion is done.
_SYSTEM_FINALIZERS: Final = frozenset(
    {
        "cloudcredential.openshift.io/deprovision",
        "customresourcecleanup.apiextensions.k8s.io",
        "foregroundDeletion",
        "orphan",
        "service.kubernetes.io/load-balancer-cleanup",
    }
)


def reference_of(manifest: Manifest) -> ObjectReference:
    """The kind, namespace and name in a manifest."""
    metadata: Mapping[str, Any] = manifest["metadata"]
    return ObjectReference(manifest["kind"], metadata.get("namespace") or "", metadata["name"])


def describe_finalizers(manifest: Manifest) -> str:
    """Which finalizers of others delay the deletion of an object, and the remedy; empty without any."""
    others = sorted(set(manifest["metadata"].get("finalizers") or ()) - _SYSTEM_FINALIZERS)
    return f"remove the finalizers {', '.join(others)} if nothing else does" if others else ""


def describe_ending(workload: Manifest) -> str:
    """What the deletion of a Deployment or DaemonSet waits for."""
    ending = f"the pods of {reference_of(workload)} are ending"
    return "; ".join(filter(None, (ending, describe_finalizers(workload))))


def has_labels(manifest: Manifest, labels: Mapping[str, str]) -> bool:
    """Whether an object has all these labels."""
    return labels.items() <= (manifest["metadata"].get("labels") or {}).items()


def is_part_of_kube_efs(manifest: Manifest) -> bool:
    """Whether an object belongs to kube-efs, however it was installed."""
    return has_labels(manifest, _PART_OF)
