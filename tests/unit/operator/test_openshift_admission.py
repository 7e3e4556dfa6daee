"""OpenShift admits each pod of kube-efs by the SecurityContextConstraints that are meant for it."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
import yaml
from tests.unit.operator.openshift_admission import (
    REQUIRED,
    Admitted,
    Manifest,
    Project,
    Refused,
    admit,
    points,
)

from kube_efs.kube.building import WorkerPod, build_worker_pod
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.operator.bundle import render_service_version
from kube_efs.operator.cluster_csi_driver import LogLevel
from kube_efs.operator.cluster_facts import ClusterFacts, TlsProfile
from kube_efs.operator.desired_objects import ALL_OPTIONAL, Component, ProcessSettings, desired_objects
from kube_efs.operator.manifests import RenderOptions, render_manifests
from kube_efs.operator.operator_manifests import render_operator
from kube_efs.operator.platforms import Platform

NAMESPACE: Final = "storage"
# Of the namespace: a project gets other numbers than the user of the tunnels.
PROJECT: Final = Project()

# What OpenShift has in every cluster, in the order of the attempts. Only authenticated users may use
# restricted-v2 without a grant.
STANDARD: Final[tuple[Manifest, ...]] = tuple(
    yaml.safe_load_all("""
metadata: {name: anyuid}
priority: 10
allowPrivilegeEscalation: true
requiredDropCapabilities: [MKNOD]
runAsUser: {type: RunAsAny}
seLinuxContext: {type: MustRunAs}
fsGroup: {type: RunAsAny}
supplementalGroups: {type: RunAsAny}
volumes: [configMap, csi, downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected, secret]
groups: [system:cluster-admins]
---
metadata: {name: restricted-v2}
allowHostDirVolumePlugin: false
allowHostNetwork: false
allowHostPorts: false
allowPrivilegeEscalation: false
allowPrivilegedContainer: false
allowedCapabilities: [NET_BIND_SERVICE]
requiredDropCapabilities: [ALL]
readOnlyRootFilesystem: false
runAsUser: {type: MustRunAsRange}
seLinuxContext: {type: MustRunAs}
seccompProfiles: [runtime/default]
fsGroup: {type: MustRunAs}
supplementalGroups: {type: RunAsAny}
volumes: [configMap, csi, downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected, secret]
---
metadata: {name: hostnetwork-v2}
allowHostDirVolumePlugin: false
allowHostNetwork: true
allowHostPorts: true
allowPrivilegeEscalation: false
allowedCapabilities: [NET_BIND_SERVICE]
requiredDropCapabilities: [ALL]
runAsUser: {type: MustRunAsRange}
seLinuxContext: {type: MustRunAs}
seccompProfiles: [runtime/default]
fsGroup: {type: MustRunAs}
supplementalGroups: {type: MustRunAs}
volumes: [configMap, csi, downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected, secret]
---
metadata: {name: privileged}
allowHostDirVolumePlugin: true
allowHostIPC: true
allowHostNetwork: true
allowHostPID: true
allowHostPorts: true
allowPrivilegeEscalation: true
allowPrivilegedContainer: true
allowedCapabilities: ["*"]
runAsUser: {type: RunAsAny}
seLinuxContext: {type: RunAsAny}
seccompProfiles: ["*"]
fsGroup: {type: RunAsAny}
supplementalGroups: {type: RunAsAny}
volumes: ["*"]
groups: [system:cluster-admins, system:nodes, system:masters]
users: [system:admin]
""")
)
RESTRICTED: Final = frozenset({"restricted-v2"})


def pod(**more: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "any"}], **more}
    return {"metadata": {}, "spec": spec}


def container(**context: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "securityContext": context}]}


def admitted(template: Manifest, *more: Manifest, granted: frozenset[str] = RESTRICTED) -> Admitted:
    return admit(template, (*STANDARD, *more), namespace=NAMESPACE, granted=granted, project=PROJECT)


# --- the helper, with OpenShift's own constraints


def test_standard_constraints_have_the_order_of_openshift() -> None:
    # restricted-v2: other volumes, MustRunAsRange, MustRunAs, one capability, ALL dropped.
    weights = {one["metadata"]["name"]: points(one) for one in STANDARD}
    assert weights["restricted-v2"] == 100_000 + 20_000 + 10_000 + 5000 + 10 - 3000
    assert weights["privileged"] == 1_600_000 + 800_000 + 400_000 + 200_000 + 2 * 40_000 + 5000 + 4000
    assert weights["restricted-v2"] < weights["anyuid"] < weights["hostnetwork-v2"] < weights["privileged"]


def test_restricted_sets_what_a_pod_does_not_state() -> None:
    found = admitted(pod())
    assert found.name == "restricted-v2"
    context = found.pod["spec"]["securityContext"]
    assert context == {
        "seLinuxOptions": {"level": PROJECT.level},
        "fsGroup": PROJECT.first_id,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert found.pod["spec"]["containers"][0]["securityContext"] == {
        "runAsUser": PROJECT.first_id,
        "runAsNonRoot": True,
        "capabilities": {"add": [], "drop": ["ALL"]},
        "allowPrivilegeEscalation": False,
    }


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (pod(hostNetwork=True), "hostNetwork is not allowed"),
        (pod(hostPID=True), "hostPID is not allowed"),
        (pod(hostIPC=True), "hostIPC is not allowed"),
        (pod(volumes=[{"name": "a", "hostPath": {"path": "/"}}]), "volume a: hostPath is not allowed"),
        (pod(volumes=[{"name": "a", "nfs": {"path": "/"}}]), "volume a: nfs is not allowed"),
        (pod(securityContext={"fsGroup": 0}), "fsGroup 0 is not allowed"),
        (
            pod(securityContext={"seLinuxOptions": {"type": "spc_t"}}),
            "pod: seLinuxOptions.level must be 's0:c26,c10'",
        ),
        (
            pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
            "pod: seccomp profile 'unconfined' is not allowed",
        ),
        (pod(containers=[{"name": "main", "ports": [{"hostPort": 1}]}]), "main: host ports are not allowed"),
        (pod(**container(privileged=True)), "main: privileged is not allowed"),
        (pod(**container(runAsUser=0)), "main: runAsUser 0 is not allowed"),
        (pod(**container(allowPrivilegeEscalation=True)), "main: allowPrivilegeEscalation is not allowed"),
        (pod(**container(capabilities={"add": ["CHOWN"]})), "main: capability CHOWN may not be added"),
    ],
    ids=str,
)
def test_restricted_refuses_each_privilege(template: Manifest, reason: str) -> None:
    with pytest.raises(Refused) as caught:
        admitted(template)
    assert reason in caught.value.reasons["restricted-v2"]
    assert caught.value.reasons["privileged"] == ["not usable by the service account"]
    # The refusal is about the privilege: those who may use these constraints get it.
    assert admitted(template, granted=frozenset({"privileged"})).name == "privileged"


def test_priority_goes_before_restrictiveness_and_the_required_constraints_before_both() -> None:
    granted = RESTRICTED | {"anyuid", "privileged"}
    assert admitted(pod(), granted=granted).name == "anyuid"
    wanted = {"metadata": {"annotations": {REQUIRED: "restricted-v2"}}, "spec": pod()["spec"]}
    assert admitted(wanted, granted=granted).name == "restricted-v2"
    with pytest.raises(Refused) as caught:
        admitted({**wanted, "spec": pod(hostNetwork=True)["spec"]}, granted=granted)
    assert set(caught.value.reasons) == {"restricted-v2"}


def test_token_of_the_service_account_needs_a_kind_of_volume() -> None:
    none = {**STANDARD[1], "metadata": {"name": "none"}, "volumes": [], "groups": ["system:authenticated"]}
    with pytest.raises(Refused) as caught:
        admit(pod(), [none], namespace=NAMESPACE)
    assert caught.value.reasons["none"] == ["volume kube-api-access: projected is not allowed"]
    assert admit(pod(), [{**none, "volumes": ["secret"]}], namespace=NAMESPACE).name == "none"
    assert admit(pod(automountServiceAccountToken=False), [none], namespace=NAMESPACE).name == "none"


# --- the pods of kube-efs

EVERYTHING: Final = ClusterFacts(
    proxy={"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc"},
    trusted_ca_version="1",
    credentials_version="1",
    credentials_mode="",
    role_arn="arn:aws:iam::123456789012:role/efs",
    tls=TlsProfile(min_version="1.3"),
    cluster_id="prod-x7k2p",
)
_NAMES: Final = NEW_INSTALLATION.names


def rendered(*, csi: bool = True, csi_only: bool = False, fips: bool = True) -> RenderOptions:
    return RenderOptions(
        platform=Platform.OPENSHIFT,
        namespace=NAMESPACE,
        csi=csi,
        csi_only=csi_only,
        fips=fips,
        region="us-east-1",
    )


def installed(options: RenderOptions, facts: ClusterFacts) -> tuple[Manifest, ...]:
    """What the operator applies, with variables for each process."""
    variables = {
        one: {"KUBE_EFS_ANY": "1"} for one in (Component.CONTROLLER, Component.TUNNEL, Component.NODE)
    }
    processes = ProcessSettings(variables=variables, observes=True, open_metrics=ALL_OPTIONAL.open_metrics)
    return desired_objects(options, facts, processes, LogLevel.TRACE)


FORMS: Final[Mapping[str, tuple[Manifest, ...]]] = {
    "rendered": render_manifests(rendered(csi=False)),
    "rendered with the driver": render_manifests(rendered()),
    "rendered, only the driver": render_manifests(rendered(csi_only=True)),
    "rendered without FIPS": render_manifests(rendered(fips=False)),
    "operator": installed(rendered(), EVERYTHING),
    "operator, only the driver": installed(rendered(csi_only=True), EVERYTHING),
    "operator without facts": installed(rendered(), ClusterFacts()),
}


def constraints_of(form: str) -> tuple[Manifest, ...]:
    return tuple(one for one in FORMS[form] if one["kind"] == "SecurityContextConstraints")


def templates() -> Iterator[Any]:
    for form, manifests in FORMS.items():
        wanted = {_NAMES.controller: "restricted-v2", _NAMES.node: _NAMES.node}
        wanted[_NAMES.tunnel] = _NAMES.tunnel if form == "rendered" else f"{_NAMES.tunnel}-csi"
        for one in manifests:
            if one["kind"] in {"Deployment", "DaemonSet"}:
                name = one["metadata"]["name"]
                yield pytest.param(form, one["spec"]["template"], wanted[name], id=f"{form}: {name}")
        yield pytest.param(form, worker_template(), f"{_NAMES.tunnel}-worker", id=f"{form}: worker")


def worker_template() -> Manifest:
    worker = WorkerPod(
        namespace=NAMESPACE,
        name="efs-worker-1",
        labels={},
        annotations={},
        image="any",
        arguments=("create",),
        service_account=_NAMES.worker_account,
        root_claim="root",
        mount_path="/efs",
        timeout_seconds=60,
        node_selector={},
        node_terms=(),
    )
    return build_worker_pod(worker).to_dict()


@pytest.mark.parametrize(("form", "template", "wanted"), [*templates()])
def test_pods_are_admitted_by_their_own_constraints(form: str, template: Manifest, wanted: str) -> None:
    found = admitted(template, *constraints_of(form))
    assert found.name == wanted
    required = (template["metadata"].get("annotations") or {}).get(REQUIRED)
    # Only the operator selects constraints: users may change the other forms.
    assert required == (wanted if form.startswith("operator") and "worker" not in wanted else None)


def test_operator_is_admitted_as_a_restricted_pod() -> None:
    options = rendered()
    (deployment,) = (one for one in render_operator(options) if one["kind"] == "Deployment")
    (bundled,) = render_service_version(options)["spec"]["install"]["spec"]["deployments"]
    for template in (deployment["spec"]["template"], bundled["spec"]["template"]):
        assert template["metadata"]["annotations"][REQUIRED] == "restricted-v2"
        assert admitted(template).name == "restricted-v2"


@pytest.mark.parametrize("form", [one for one in FORMS if one.startswith("operator")])
def test_pods_keep_their_constraints_where_others_are_granted_to_everybody(form: str) -> None:
    granted = frozenset(one["metadata"]["name"] for one in STANDARD)
    for one in FORMS[form]:
        if one["kind"] in {"Deployment", "DaemonSet"}:
            template = one["spec"]["template"]
            found = admitted(template, *constraints_of(form), granted=granted)
            assert found.name == template["metadata"]["annotations"][REQUIRED]


# Each field that a form needs, by the constraints that have it.
_NEEDED: Final[Mapping[str, Mapping[str, Any]]] = {
    _NAMES.tunnel: {"allowHostNetwork": False, "allowHostPorts": False},
    f"{_NAMES.tunnel}-csi": {
        "allowHostNetwork": False,
        "allowHostPorts": False,
        "allowHostDirVolumePlugin": False,
        "allowedCapabilities": [],
        "runAsUser": {"type": "MustRunAsRange"},
        "seLinuxContext": {"type": "MustRunAs"},
        "seccompProfiles": [],
    },
    _NAMES.node: {
        "allowHostNetwork": False,
        "allowHostPorts": False,
        "allowHostDirVolumePlugin": False,
        "allowPrivilegedContainer": False,
        "allowPrivilegeEscalation": False,
        "runAsUser": {"type": "MustRunAsNonRoot"},
    },
    f"{_NAMES.tunnel}-worker": {"runAsUser": {"type": "MustRunAsRange"}, "users": []},
}


def needed() -> Iterator[Any]:
    for form, name in (("rendered", _NAMES.tunnel), *(("operator", one) for one in list(_NEEDED)[1:])):
        volumes = next(one for one in constraints_of(form) if one["metadata"]["name"] == name)["volumes"]
        # The volume with the CAs of the cluster is only in what the operator applies.
        used = [one for one in volumes if one != "hostPath" and (form == "operator" or one != "configMap")]
        smaller = {one: {"volumes": [other for other in volumes if other != one]} for one in used}
        for field, value in _NEEDED[name].items():
            yield pytest.param(form, name, {field: value}, id=f"{name}: {field}")
        for volume, change in smaller.items():
            yield pytest.param(form, name, change, id=f"{name}: volume {volume}")


@pytest.mark.parametrize(("form", "name", "change"), [*needed()])
def test_constraints_allow_no_more_than_their_pods_need(
    form: str, name: str, change: Mapping[str, Any]
) -> None:
    (template,) = (one.values[1] for one in templates() if one.values[0] == form and one.values[2] == name)
    changed = [{**one, **change} if one["metadata"]["name"] == name else one for one in constraints_of(form)]
    # Without those of the other form, which the account of the tunnels may also use.
    usable = [one for one in changed if one["metadata"]["name"] == name]
    with pytest.raises(Refused):
        admitted(copy.deepcopy(template), *usable)
