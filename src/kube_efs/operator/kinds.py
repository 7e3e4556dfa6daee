"""The kinds of objects that an installation consists of, and what may be done with each."""

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
    rbac_authorization_v1,
    storage_v1,
)

from kube_efs.operator.manifests import Manifest

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
    """One object; ``namespace`` is empty for kinds without namespaces."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of object.

    ``optional`` when a cluster may not have it. ``immutable`` are the fields with which an object has to be
    recreated to change them. ``create_only`` when it is the administrator's as soon as it is there.
    ``outside_namespace`` when its objects do not lie in the namespace of the installation.
    """

    resource: type[Resource]
    optional: bool = False
    immutable: tuple[tuple[str, ...], ...] = ()
    create_only: bool = False
    outside_namespace: bool = False

    @property
    def is_namespaced(self) -> bool:
        """Whether its objects lie in namespaces."""
        return issubclass(self.resource, NamespacedResource)

    def namespace(self, own: str) -> str | None:
        """Where objects of an installation in ``own`` are: ``*`` is anywhere, None in no namespace."""
        if not self.is_namespaced:
            return None
        return "*" if self.outside_namespace else own


_SELECTOR = (("spec", "selector"),)
_ROLE = (("roleRef",),)

# In the order in which a cluster can do without them: what runs is removed in an order of its own.
KINDS: Final[Mapping[str, Kind]] = {
    "ServiceMonitor": Kind(resource=ServiceMonitor, optional=True),
    "PodMonitor": Kind(resource=PodMonitor, optional=True),
    "PrometheusRule": Kind(resource=PrometheusRule, optional=True),
    "Deployment": Kind(resource=apps_v1.Deployment, immutable=_SELECTOR),
    "DaemonSet": Kind(resource=apps_v1.DaemonSet, immutable=_SELECTOR),
    "CredentialsRequest": Kind(resource=CredentialsRequest, optional=True, outside_namespace=True),
    # Of Kubernetes 1.30 and newer.
    "ValidatingAdmissionPolicyBinding": Kind(
        resource=admissionregistration_v1.ValidatingAdmissionPolicyBinding, optional=True
    ),
    "ValidatingAdmissionPolicy": Kind(
        resource=admissionregistration_v1.ValidatingAdmissionPolicy, optional=True
    ),
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
# What volumes and their users refer to stays when the driver goes.
KEPT_AFTER_UNINSTALL: Final = frozenset({"StorageClass", "CustomResourceDefinition"})
WORKLOADS: Final = frozenset({"DaemonSet", "Deployment"})


def reference_of(manifest: Manifest) -> ObjectReference:
    """Which object a manifest is for."""
    metadata: Mapping[str, Any] = manifest["metadata"]
    return ObjectReference(manifest["kind"], metadata.get("namespace") or "", metadata["name"])
