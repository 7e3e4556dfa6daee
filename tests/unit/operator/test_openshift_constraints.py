"""The SecurityContextConstraints of kube-efs fit its pods.

This is a quick check. The conformance tests admit the same pods with OpenShift's own library.
"""

import pytest
from tests.unit.operator.openshift_pods import (
    FORMS,
    NAMESPACE,
    RESTRICTED,
    OpenShiftPod,
    constraints_of,
    operators,
    pods,
    volumes_of,
)

_ALL = [*pods(), *operators()]
# Of the constraints restricted-v2, which every cluster has.
_RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


@pytest.mark.parametrize("pod", [pytest.param(one, id=f"{one.form}: {one.name}") for one in _ALL])
def test_constraints_have_what_the_pod_needs(pod: OpenShiftPod) -> None:
    spec = pod.template["spec"]
    used = {kind for kind, _ in volumes_of(pod.template)}
    contexts = [one.get("securityContext") or {} for one in spec["containers"]]
    if pod.constraints == RESTRICTED:
        assert used <= _RESTRICTED_VOLUMES
        assert not spec.get("hostNetwork")
        assert not any(one.get("privileged") for one in contexts)
        return
    (constraints,) = (one for one in constraints_of(pod.form) if one["metadata"]["name"] == pod.constraints)
    account = f"system:serviceaccount:{NAMESPACE}:{spec['serviceAccountName']}"
    assert account in constraints["users"]
    assert used <= {*constraints["volumes"]}
    assert ("hostPath" in used) <= constraints["allowHostDirVolumePlugin"]
    assert bool(spec.get("hostNetwork")) <= constraints["allowHostNetwork"]
    assert any(one.get("privileged") for one in contexts) <= constraints["allowPrivilegedContainer"]


@pytest.mark.parametrize("form", FORMS)
def test_only_the_operator_selects_the_constraints_of_its_pods(form: str) -> None:
    # Users may change the other forms. The controller creates the worker pods.
    for pod in pods():
        if pod.form == form:
            selects = form.startswith("operator") and pod.name != "worker"
            assert pod.required == (pod.constraints if selects else None)


def test_pod_of_the_operator_is_restricted() -> None:
    assert [one.required for one in operators()] == [RESTRICTED, RESTRICTED]
