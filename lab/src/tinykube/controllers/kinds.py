"""The kinds of objects that can own, be owned, and lie in namespaces."""

from collections.abc import Iterable
from typing import Any

from lightkube.core.resource import NamespacedResource, Resource, api_info
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.resources import (
    apps_v1,
    coordination_v1,
    core_v1,
    policy_v1,
    rbac_authorization_v1,
)
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition

Kind = type[Resource]

# In the order in which a namespace is emptied: what makes other objects goes first.
OWNING: tuple[Kind, ...] = (
    apps_v1.DaemonSet,
    apps_v1.Deployment,
    apps_v1.StatefulSet,
    coordination_v1.Lease,
    policy_v1.PodDisruptionBudget,
    rbac_authorization_v1.ClusterRole,
    rbac_authorization_v1.ClusterRoleBinding,
    rbac_authorization_v1.Role,
    rbac_authorization_v1.RoleBinding,
    core_v1.Pod,
    core_v1.PersistentVolumeClaim,
    core_v1.PersistentVolume,
    core_v1.Service,
    core_v1.Endpoints,
    core_v1.ConfigMap,
    core_v1.Secret,
    core_v1.ServiceAccount,
    core_v1.Namespace,
    core_v1.Node,
)
NAMESPACED: tuple[Kind, ...] = (
    *(kind for kind in OWNING if issubclass(kind, NamespacedResource)),
    core_v1.Event,
)


def kind_name(kind: Kind) -> str:
    """``apiVersion/Kind`` as owner references spell it."""
    resource = api_info(kind).resource
    group = f"{resource.group}/" if resource.group else ""
    return f"{group}{resource.version}/{resource.kind}"


def is_namespaced(kind: Kind) -> bool:
    """Whether objects of that kind lie in namespaces."""
    return issubclass(kind, NamespacedResource)


def custom_kinds(definitions: Iterable[CustomResourceDefinition]) -> tuple[Kind, ...]:
    """The kinds that are defined by these, each of which has one version."""
    found: list[Any] = []
    for definition in definitions:
        spec = definition.spec
        create = create_namespaced_resource if spec.scope == "Namespaced" else create_global_resource
        found.append(create(spec.group, spec.versions[0].name, spec.names.kind, spec.names.plural))
    return tuple(found)
