"""The operator's own objects: its account, its permissions, its Deployment, and its custom resource."""

from collections.abc import Iterable, Mapping
from typing import Any

from kube_efs.operator.desired_objects import ClusterFacts, desired_objects
from kube_efs.operator.extras import EVERYTHING
from kube_efs.operator.manifests import Manifest, RenderOptions, render_asset, values_of
from kube_efs.operator.own_objects import DRIVER_DEFINITION
from kube_efs.operator.platforms import Platform
from kube_efs.operator.takeover import OLDER_WORKLOADS


def render_operator(options: RenderOptions) -> tuple[Manifest, ...]:
    """Every object, in the order in which a cluster can take them."""
    values = values_of(options)
    openshift = options.platform is Platform.OPENSHIFT
    kind = () if openshift else render_asset("cluster-csi-driver-crd", values)
    return (
        *render_asset("namespace", values),
        *kind,
        *render_rights(options),
        *render_asset("operator", values),
    )


def render_rights(options: RenderOptions) -> tuple[Manifest, ...]:
    """Its roles, with all permissions that it grants to the processes that it installs."""
    openshift = options.platform is Platform.OPENSHIFT
    common = values_of(options)
    monitoring = render_asset("operator-monitoring-openshift", common) if openshift else ()
    installed = (*desired_objects(options, ClusterFacts(extras=EVERYTHING)), *monitoring)
    definitions = [one["metadata"]["name"] for one in installed if one["kind"] == "CustomResourceDefinition"]
    values = {
        **common,
        "crds": [DRIVER_DEFINITION, *definitions],
        "older_workloads": list(OLDER_WORKLOADS),
        "openshift": openshift,
        "kubernetes": not openshift,
    }
    return tuple(_with_given(one, installed) for one in render_asset("operator-rbac", values))


def _with_given(own: Manifest, installed: Iterable[Manifest]) -> Manifest:
    """A role of the operator with the rules of all roles of its kind."""
    if "rules" not in own:
        return own
    given = [rule for one in installed if one["kind"] == own["kind"] for rule in one["rules"]]
    return {**own, "rules": _distinct([*own["rules"], *given])}


def _distinct(rules: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for rule in rules:
        if rule not in found:
            found.append(rule)
    return found
