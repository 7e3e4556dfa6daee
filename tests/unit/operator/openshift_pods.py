"""The pods of kube-efs on OpenShift, of each form of installation, and the constraints meant for each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kube_efs.kube.building import WorkerPod, build_worker_pod
from kube_efs.model.names import KUBE_EFS, Names, NameSet
from kube_efs.operator.bundle import render_service_version
from kube_efs.operator.cluster_csi_driver import LogLevel
from kube_efs.operator.cluster_facts import InstallationFacts, TlsProfile
from kube_efs.operator.desired_objects import ALL_OPTIONAL, Component, ProcessSettings, desired_objects
from kube_efs.operator.manifests import Manifest, RenderOptions, render_manifests
from kube_efs.operator.operator_manifests import render_operator
from kube_efs.operator.platforms import Platform

NAMESPACE: Final = "storage"
# Those of all forms but two.
NAMES: Final = KUBE_EFS
REQUIRED: Final = "openshift.io/required-scc"
RESTRICTED: Final = "restricted-v2"
# Everything that the operator adds to pods.
EVERYTHING: Final = InstallationFacts(
    proxy={"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc"},
    trusted_ca_version="1",
    credentials_version="1",
    credentials_mode="",
    role_arn="arn:aws:iam::123456789012:role/efs",
    tls=TlsProfile(min_version="1.3"),
    cluster_id="prod-x7k2p",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShiftPod:
    """A pod of an installation.

    ``creator`` is the service account that creates it, empty for the controllers of Kubernetes.
    ``constraints`` is the name of the only ones that must admit it.
    """

    form: str
    name: str
    template: Manifest
    constraints: str
    creator: str = ""

    @property
    def required(self) -> str | None:
        """The constraints that the pod itself names."""
        return (self.template["metadata"].get("annotations") or {}).get(REQUIRED)


def rendered(
    *, csi: bool = True, csi_only: bool = False, fips: bool = True, names: NameSet = NAMES.name_set
) -> RenderOptions:
    """The options of ``kube-efs render``."""
    return RenderOptions(
        platform=Platform.OPENSHIFT,
        names=names,
        namespace=NAMESPACE,
        csi=csi,
        csi_only=csi_only,
        fips=fips,
        region="us-east-1",
    )


def installed(options: RenderOptions, facts: InstallationFacts) -> tuple[Manifest, ...]:
    """What the operator applies, with variables for each process."""
    variables = {
        one: {"KUBE_EFS_ANY": "1"} for one in (Component.CONTROLLER, Component.TUNNEL, Component.NODE)
    }
    processes = ProcessSettings(variables=variables, observes=True, open_metrics=ALL_OPTIONAL.open_metrics)
    return desired_objects(options, facts, processes, LogLevel.TRACE)


_OTHER_NAMES: Final = [one for one in NameSet if one is not NAMES.name_set]
FORMS: Final[Mapping[str, tuple[Manifest, ...]]] = {
    "rendered": render_manifests(rendered(csi=False)),
    "rendered with the driver": render_manifests(rendered()),
    "rendered, only the driver": render_manifests(rendered(csi_only=True)),
    "rendered without FIPS": render_manifests(rendered(fips=False)),
    "operator": installed(rendered(), EVERYTHING),
    "operator, only the driver": installed(rendered(csi_only=True), EVERYTHING),
    "operator without facts": installed(rendered(), InstallationFacts()),
    **{f"operator, {one}": installed(rendered(names=one), EVERYTHING) for one in _OTHER_NAMES},
}
OPERATOR: Final = "the operator itself"


def constraints_of(form: str) -> tuple[Manifest, ...]:
    """The SecurityContextConstraints of a form."""
    return tuple(one for one in FORMS[form] if one["kind"] == "SecurityContextConstraints")


def pods() -> Iterator[OpenShiftPod]:
    """Every pod of every form."""
    for form, manifests in FORMS.items():
        names = next((one.names for one in _OTHER_NAMES if form == f"operator, {one}"), NAMES)
        wanted = {names.controller: RESTRICTED, names.node: names.node}
        wanted[names.tunnel] = names.tunnel if form == "rendered" else f"{names.tunnel}-csi"
        for one in manifests:
            if one["kind"] in {"Deployment", "DaemonSet"}:
                name = one["metadata"]["name"]
                yield OpenShiftPod(
                    form=form, name=name, template=one["spec"]["template"], constraints=wanted[name]
                )
        yield OpenShiftPod(
            form=form,
            name="worker",
            template=_worker_template(names),
            constraints=f"{names.tunnel}-worker",
            creator=names.controller_account,
        )


def operators() -> Iterator[OpenShiftPod]:
    """The pod of the operator, rendered and from the bundle."""
    (deployment,) = (one for one in render_operator(rendered()) if one["kind"] == "Deployment")
    (bundled,) = render_service_version(rendered())["spec"]["install"]["spec"]["deployments"]
    for name, spec in (("rendered", deployment["spec"]), ("bundled", bundled["spec"])):
        yield OpenShiftPod(form=OPERATOR, name=name, template=spec["template"], constraints=RESTRICTED)


def volumes_of(template: Manifest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The kind and the source of each volume."""
    for volume in template["spec"].get("volumes") or ():
        yield from ((kind, source) for kind, source in volume.items() if kind != "name")


def _worker_template(names: Names) -> Manifest:
    worker = WorkerPod(
        namespace=NAMESPACE,
        name="efs-worker-1",
        labels={},
        annotations={},
        image="any",
        arguments=("create",),
        service_account=names.worker_account,
        root_claim="root",
        mount_path="/efs",
        timeout_seconds=60,
        node_selector={},
        node_terms=(),
    )
    return build_worker_pod(worker).to_dict()
