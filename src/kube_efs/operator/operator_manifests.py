"""The operator's own objects: those that ``kube-efs render`` prints, and those that it applies itself."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog
from lightkube.resources.apps_v1 import Deployment

from kube_efs.kube.errors import translated
from kube_efs.model.errors import InvalidSetting, KubeError, KubeNotFound
from kube_efs.model.names import NameSet
from kube_efs.operator.cluster_facts import InstallationFacts
from kube_efs.operator.desired_objects import ALL_OPTIONAL, desired_objects
from kube_efs.operator.kinds import ObjectReference, is_part_of_kube_efs
from kube_efs.operator.manifests import NAMESPACE, Manifest, RenderOptions, render_asset, values_of
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.other_operators import INSTALLED_WORKLOADS
from kube_efs.operator.platforms import Platform
from kube_efs.operator.takeover import OLDER_CLASS, OLDER_WORKLOADS
from kube_efs.settings.operator import OperatorSettings

log = structlog.get_logger(__name__)

_CRD: Final = ObjectReference("CustomResourceDefinition", "", "clustercsidrivers.operator.openshift.io")
_POLL_SECONDS: Final = 0.2


def render_operator(options: RenderOptions) -> tuple[Manifest, ...]:
    """Every object, in the order in which they must be applied; raises InvalidSetting."""
    values = values_of(options)
    is_openshift = options.platform is Platform.OPENSHIFT
    return (
        *(render_asset(NAMESPACE, values) if options.has_namespace else ()),
        *(() if is_openshift else render_asset("cluster-csi-driver-crd", values)),
        *render_operator_roles(options),
        *render_asset("operator", values),
    )


def render_operator_roles(options: RenderOptions) -> tuple[Manifest, ...]:
    """The service account, roles and bindings of the operator.

    RBAC lets the operator grant only permissions that it has, so its roles also have the rules of all roles
    that it may install. Raises InvalidSetting for an option that is the operator's own decision.
    """
    if not options.pod_tokens:
        remedy = "leave it out: the operator waits with tokens until no pod of an older driver is left"
        raise InvalidSetting("does not apply to the operator", field="pod_tokens", value=False, remedy=remedy)
    # A setting of the operator changes what it installs, without new roles.
    options = replace(options, csi_only=False)
    is_openshift = options.platform is Platform.OPENSHIFT
    common = values_of(options)
    monitoring = render_asset("operator-monitoring-openshift", common) if is_openshift else ()
    # The operator keeps the names that it finds, so it may have to grant permissions to objects of all names.
    of_all_names = [replace(options, names=one) for one in (options.names, *NameSet)]
    desired = (
        one for each in of_all_names for one in desired_objects(each, InstallationFacts(), ALL_OPTIONAL)
    )
    granted = (*desired, *monitoring)
    definitions = dict.fromkeys(
        one["metadata"]["name"] for one in granted if one["kind"] == "CustomResourceDefinition"
    )
    values = {
        **common,
        "crds": [_CRD.name, *definitions],
        "workloads": list(dict.fromkeys((*OLDER_WORKLOADS, *INSTALLED_WORKLOADS))),
        "deletable_classes": [OLDER_CLASS, *(one.names.storage_class for one in NameSet)],
        "kubernetes": not is_openshift,
    }
    return tuple(_with_rules_of(one, granted) for one in render_asset("operator-rbac", values))


def _with_rules_of(own: Manifest, granted: Iterable[Manifest]) -> Manifest:
    """A role of the operator, also with the rules of all roles of its kind."""
    if "rules" not in own:
        return own
    rules: list[Mapping[str, Any]] = []
    for role in (own, *(one for one in granted if one["kind"] == own["kind"])):
        for rule in role["rules"]:
            if rule not in rules:
                rules.append(rule)
    return {**own, "rules": rules}


async def ensure_driver_crd(objects: ObjectClient) -> None:
    """Apply the definition of ClusterCSIDriver, unless the cluster has another one; raises KubeError.

    OpenShift has its own definition, which belongs to the cluster.
    """
    found = await objects.get(_CRD)
    if found is None or is_part_of_kube_efs(found):
        (desired,) = render_asset("cluster-csi-driver-crd", {})
        await objects.apply(desired)
        log.info("driver-crd-applied", new=found is None)
    # Until then, the API server answers requests for the kind with 404.
    while not _is_established(await objects.get(_CRD)):  # noqa: ASYNC110 - the API server changes it
        await asyncio.sleep(_POLL_SECONDS)


def _is_established(definition: Manifest | None) -> bool:
    conditions = ((definition or {}).get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


async def find_deployment_uid(objects: ObjectClient, settings: OperatorSettings) -> str:
    """The UID of the operator's Deployment; empty if there is none, as on the machine of a developer."""
    name, namespace = settings.operator_name, settings.namespace
    try:
        with translated(f"Deployment {namespace}/{name}"):
            found = await objects.client.get(Deployment, name, namespace=namespace)
    except KubeError as error:
        log.info("own-deployment-unknown", reason=str(error))
        return ""
    return (found.metadata and found.metadata.uid) or ""


async def ensure_monitoring(
    objects: ObjectClient, settings: OperatorSettings, platform: Platform, deployment_uid: str
) -> None:
    """Apply the monitor and alerts of the operator, if the cluster has these kinds.

    The Deployment owns them, so Kubernetes deletes them with it. An error does not stop the operator.
    """
    values = {"namespace": settings.namespace, "operator_name": settings.operator_name}
    openshift = ("operator-monitoring-openshift",) if platform is Platform.OPENSHIFT else ()
    for asset in ("operator-monitoring", *openshift):
        for manifest in render_asset(asset, values):
            try:
                await objects.apply(_owned(manifest, settings.operator_name, deployment_uid))
            except KubeNotFound:
                log.debug("kind-missing", kind=manifest["kind"])
            except KubeError as error:
                log.warning("monitoring-not-applied", kind=manifest["kind"], reason=str(error))


def _owned(manifest: Manifest, deployment: str, uid: str) -> Manifest:
    if not uid:
        return manifest
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment, "uid": uid}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}
