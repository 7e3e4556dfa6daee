"""OpenShift's own admission plugin admits each pod by the SecurityContextConstraints meant for it."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.conformance.programs import run_optional
from tests.unit.operator.openshift_pods import (
    FORMS,
    NAMES,
    NAMESPACE,
    RESTRICTED,
    OpenShiftPod,
    constraints_of,
    operators,
    pods,
    rendered,
    volumes_of,
)

from kube_efs.operator.manifests import Manifest
from kube_efs.operator.operator_manifests import render_operator

STANDARD: Final[tuple[Manifest, ...]] = tuple(
    {"kind": "SecurityContextConstraints", **one}
    for one in yaml.safe_load_all(Path(__file__).with_name("standard-constraints.yaml").read_text())
)
# What OpenShift adds to each namespace. They are not the user and the group of kube-efs.
_NUMBERS: Final = {
    "openshift.io/sa.scc.uid-range": "1000680000/10000",
    "openshift.io/sa.scc.supplemental-groups": "1000680000/10000",
    "openshift.io/sa.scc.mcs": "s0:c26,c10",
}
_RBAC: Final = "rbac.authorization.k8s.io"
_IN_NAMESPACE: Final = ("Role", "RoleBinding", "ServiceAccount")


def grant(names: Sequence[str]) -> list[dict[str, Any]]:
    """Lets all authenticated users use these constraints, as the roles of OpenShift do."""
    rule = {
        "apiGroups": ["security.openshift.io"],
        "resources": ["securitycontextconstraints"],
        "resourceNames": names,
        "verbs": ["use"],
    }
    group = {"apiGroup": _RBAC, "kind": "Group", "name": "system:authenticated"}
    reference = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "scc"}
    return [
        {"kind": "ClusterRole", "metadata": {"name": "scc"}, "rules": [rule]},
        {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "scc"},
            "subjects": [group],
            "roleRef": reference,
        },
    ]


def admit(
    wanted: Sequence[OpenShiftPod], objects: Sequence[Manifest], *, granted: Sequence[str] = (RESTRICTED,)
) -> list[dict[str, Any]]:
    """The answer of OpenShift to each of these pods, in a cluster with these objects."""
    namespace = {"kind": "Namespace", "metadata": {"name": NAMESPACE, "annotations": _NUMBERS}}
    # The controllers of Kubernetes have no constraints of their own.
    creator = "replicaset-controller"
    account = {"kind": "ServiceAccount", "metadata": {"name": creator, "namespace": NAMESPACE}}
    kept = [one for one in objects if one["kind"] not in {"Namespace", "Deployment", "DaemonSet"}]
    given = [namespace, account, *STANDARD, *grant(granted), *kept]
    requests = [
        {
            "creator": one.creator or creator,
            "pod": {
                "apiVersion": "v1",
                "kind": "Pod",
                **one.template,
                "metadata": {**one.template["metadata"], "name": "a"},
            },
        }
        for one in wanted
    ]
    text = json.dumps({"namespace": NAMESPACE, "objects": given, "pods": requests})
    answers: list[dict[str, Any]] = json.loads(run_optional("admit-pods", stdin=text))
    return answers


def of_form(form: str) -> list[OpenShiftPod]:
    return [one for one in pods() if one.form == form]


@pytest.mark.parametrize("form", FORMS)
def test_pods_are_admitted_by_their_own_constraints(form: str) -> None:
    wanted = of_form(form)
    answers = admit(wanted, FORMS[form])
    found = {
        one.name: answer["constraints"] or answer["reason"]
        for one, answer in zip(wanted, answers, strict=True)
    }
    assert found == {one.name: one.constraints for one in wanted}


def test_operator_is_admitted_as_a_restricted_pod() -> None:
    answers = admit(list(operators()), render_operator(rendered()))
    assert [one["constraints"] or one["reason"] for one in answers] == [RESTRICTED, RESTRICTED]


def test_pods_with_everything_have_each_optional_part() -> None:
    """The admission of these pods is that of a cluster where everything is switched on."""
    used: dict[str, set[str]] = {}
    for one in of_form("operator"):
        (container, *_) = one.template["spec"]["containers"]
        found = {variable["name"] for variable in container.get("env") or ()}
        for kind, source in volumes_of(one.template):
            found.add(source.get("secretName") or source.get("name") or kind)
        used[one.name] = found
    trusted_ca, metrics = (
        "aws-efs-csi-driver-trusted-ca-bundle",
        "aws-efs-csi-driver-controller-metrics-serving-cert",
    )
    assert {"HTTPS_PROXY", trusted_ca, "AWS_USE_FIPS_ENDPOINT"} <= used[NAMES.tunnel]
    assert {"HTTPS_PROXY", trusted_ca} <= used[NAMES.node]
    controller = {"HTTPS_PROXY", trusted_ca, "AWS_USE_FIPS_ENDPOINT"}
    # The keys of an account, the token for a role, and the certificate for metrics.
    controller |= {"aws-efs-cloud-credentials", "projected", metrics}
    assert controller <= used[NAMES.controller]


@pytest.mark.parametrize("form", [one for one in FORMS if one.startswith("operator")])
def test_pods_keep_their_constraints_where_all_others_are_granted_to_everybody(form: str) -> None:
    wanted = [one for one in of_form(form) if one.required]
    assert len(wanted) == 3
    granted = [one["metadata"]["name"] for one in STANDARD]
    answers = admit(wanted, FORMS[form], granted=granted)
    assert [one["constraints"] or one["reason"] for one in answers] == [one.constraints for one in wanted]


def test_pod_with_a_directory_of_the_node_that_its_constraints_lack_is_refused() -> None:
    (own,) = (one for one in of_form("rendered") if one.name == NAMES.tunnel)
    template = copy.deepcopy(dict(own.template))
    template["spec"]["volumes"] = [
        *template["spec"].get("volumes", ()),
        {"name": "node", "hostPath": {"path": "/etc"}},
    ]
    changed = OpenShiftPod(form=own.form, name=own.name, template=template, constraints="")
    (answer,) = admit([changed], FORMS[own.form])
    assert not answer["constraints"]
    assert "hostPath volumes are not allowed to be used" in answer["reason"]


# Each field that a form needs, by the constraints that have it.
_NEEDED: Final[Mapping[str, Mapping[str, Any]]] = {
    NAMES.tunnel: {"allowHostNetwork": False, "allowHostPorts": False},
    f"{NAMES.tunnel}-csi": {
        "allowHostNetwork": False,
        "allowHostPorts": False,
        "allowHostDirVolumePlugin": False,
        "allowedCapabilities": [],
        "runAsUser": {"type": "MustRunAsRange"},
        "seLinuxContext": {"type": "MustRunAs"},
        "seccompProfiles": [],
    },
    NAMES.node: {
        "allowHostNetwork": False,
        "allowHostPorts": False,
        "allowHostDirVolumePlugin": False,
        "allowPrivilegedContainer": False,
        "allowPrivilegeEscalation": False,
        "runAsUser": {"type": "MustRunAsNonRoot"},
    },
    f"{NAMES.tunnel}-worker": {"runAsUser": {"type": "MustRunAsRange"}, "users": []},
}


def needed() -> Iterator[Any]:
    for form, name in (("rendered", NAMES.tunnel), *(("operator", one) for one in list(_NEEDED)[1:])):
        volumes = next(one for one in constraints_of(form) if one["metadata"]["name"] == name)["volumes"]
        # The volume with the CAs of the cluster is only in what the operator applies.
        used = [one for one in volumes if one != "hostPath" and (form == "operator" or one != "configMap")]
        for field, value in _NEEDED[name].items():
            yield pytest.param(form, name, {field: value}, id=f"{name}: {field}")
        for volume in used:
            smaller = {"volumes": [one for one in volumes if one != volume]}
            yield pytest.param(form, name, smaller, id=f"{name}: volume {volume}")


@pytest.mark.parametrize(("form", "name", "change"), [*needed()])
def test_constraints_allow_no_more_than_their_pods_need(
    form: str, name: str, change: Mapping[str, Any]
) -> None:
    wanted = [one for one in of_form(form) if one.constraints == name]
    # Without those of the other form, which the account of the tunnels may also use.
    others = {one["metadata"]["name"] for one in constraints_of(form)} - {name}
    objects = [
        {**one, **change} if one["metadata"]["name"] == name else one
        for one in FORMS[form]
        if one["kind"] != "SecurityContextConstraints" or one["metadata"]["name"] not in others
    ]
    (answer,) = admit(wanted, objects)
    assert not answer["constraints"]
    assert answer["reason"]
