"""What each built-in kind fills in and refuses."""

from typing import Any

import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.objects.values import Json, lookup


def claim(**spec: Any) -> Json:
    wanted = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": "data"}, "spec": {**wanted, **spec}}


def volume(**spec: Any) -> Json:
    given = {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Gi"},
        "nfs": {"server": "127.0.0.1", "path": "/data"},
    }
    return {"metadata": {"name": "v1"}, "spec": {**given, **spec}}


def storage_class(name: str = "efs", **fields: Any) -> Json:
    return {"metadata": {"name": name}, "provisioner": "example.com/efs", **fields}


def pod(**spec: Any) -> Json:
    container = {"name": "main", "image": "busybox"}
    return {"metadata": {"name": "one"}, "spec": {"containers": [container], **spec}}


def deployment() -> Json:
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": pod()["spec"]}
    return {
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


@pytest.mark.parametrize(
    ("plural", "body", "path", "value"),
    [
        pytest.param("persistentvolumeclaims", claim(), "spec.volumeMode", "Filesystem", id="claim's mode"),
        pytest.param("persistentvolumeclaims", claim(), "status.phase", "Pending", id="claim's phase"),
        pytest.param(
            "persistentvolumeclaims",
            claim(resources={"requests": {"storage": 1000}}),
            "spec.resources.requests.storage",
            "1000",
            id="size without quotes",
        ),
        pytest.param(
            "persistentvolumeclaims",
            claim(),
            "metadata.finalizers",
            ["kubernetes.io/pvc-protection"],
            id="claim's protection",
        ),
        pytest.param(
            "persistentvolumes",
            volume(),
            "spec.persistentVolumeReclaimPolicy",
            "Retain",
            id="volume's policy",
        ),
        pytest.param(
            "persistentvolumes",
            volume(),
            "status",
            {"phase": "Pending", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"},
            id="volume's phase",
        ),
        pytest.param(
            "persistentvolumes",
            volume(),
            "metadata.finalizers",
            ["kubernetes.io/pv-protection"],
            id="volume's protection",
        ),
        pytest.param("storageclasses", storage_class(), "reclaimPolicy", "Delete", id="class's policy"),
        pytest.param("storageclasses", storage_class(), "volumeBindingMode", "Immediate", id="class's mode"),
        pytest.param(
            "csidrivers",
            {"metadata": {"name": "d"}, "spec": {"attachRequired": False}},
            "spec",
            {
                "attachRequired": False,
                "podInfoOnMount": False,
                "storageCapacity": False,
                "fsGroupPolicy": "ReadWriteOnceWithFSType",
                "volumeLifecycleModes": ["Persistent"],
                "requiresRepublish": False,
                "seLinuxMount": False,
            },
            id="driver",
        ),
        pytest.param("pods", pod(), "status", {"phase": "Pending"}, id="pod's status"),
        pytest.param("pods", pod(), "spec.restartPolicy", "Always", id="pod's restarts"),
        pytest.param("pods", pod(), "spec.serviceAccountName", "default", id="pod's account"),
        pytest.param(
            "secrets",
            {"metadata": {"name": "s"}, "stringData": {"a": "b"}},
            "data",
            {"a": "Yg=="},
            id="secret",
        ),
        pytest.param(
            "deployments",
            deployment(),
            "spec.strategy",
            {"type": "RollingUpdate"},
            id="deployment's strategy",
        ),
    ],
)
def test_what_is_left_out_is_filled_in(
    inside: Inside, plural: str, body: Json, path: str, value: object
) -> None:
    assert lookup(inside.create(plural, body), *path.split(".")) == value


def test_pod_containers_are_completed(inside: Inside) -> None:
    given = {
        "name": "main",
        "image": "busybox:1.36",
        "resources": {"limits": {"cpu": "1000m", "memory": "64Mi"}},
        "livenessProbe": {"httpGet": {"port": 80}},
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    }
    created = inside.create("pods", pod(containers=[given], volumes=[{"name": "scratch"}]))
    (container,) = created["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"] == {"port": 80, "path": "/", "scheme": "HTTP"}
    assert container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert created["spec"]["volumes"][0] == {"name": "scratch", "emptyDir": {}}


@pytest.mark.parametrize(
    ("plural", "body", "field"),
    [
        pytest.param("persistentvolumeclaims", claim(accessModes=[]), "spec.accessModes", id="no mode"),
        pytest.param("persistentvolumeclaims", claim(resources={}), "spec.resources[storage]", id="size"),
        pytest.param(
            "persistentvolumeclaims",
            claim(resources={"requests": {"storage": "0"}}),
            "spec.resources[storage]",
            id="no size at all",
        ),
        pytest.param("persistentvolumes", volume(capacity={}), "spec.capacity", id="capacity"),
        pytest.param("persistentvolumes", volume(nfs=None), "spec", id="no source"),
        pytest.param("persistentvolumes", volume(hostPath={"path": "/x"}), "spec", id="two sources"),
        pytest.param("storageclasses", storage_class(provisioner=""), "provisioner", id="nobody"),
        pytest.param(
            "deployments",
            {
                "metadata": {"name": "d"},
                "spec": {**deployment()["spec"], "selector": {"matchLabels": {"a": "c"}}},
            },
            "spec.template.metadata.labels",
            id="selector of other pods",
        ),
        pytest.param("pods", pod(containers=[]), "spec.containers", id="no container"),
        pytest.param(
            "events",
            {"metadata": {"name": "e"}, "involvedObject": {"namespace": "other", "name": "x"}},
            "involvedObject.namespace",
            id="event in another namespace",
        ),
    ],
)
def test_what_breaks_a_rule_is_refused(inside: Inside, plural: str, body: Json, field: str) -> None:
    with refused(422, field) as refusal:
        inside.create(plural, body)
    status = refusal.error.status
    assert status["reason"] == "Invalid"
    assert [cause["field"] for cause in status["details"]["causes"]] == [field]


def test_malformed_quantities_are_refused(inside: Inside) -> None:
    with refused(400, "are not quantities"):
        inside.create("persistentvolumeclaims", claim(resources={"requests": {"storage": "big"}}))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param({"volumeName": "v1"}, "", id="bound once"),
        pytest.param({"accessModes": ["ReadWriteOnce"]}, "spec: is immutable", id="modes"),
        pytest.param(
            {"resources": {"requests": {"storage": "2Gi"}}}, "spec: is immutable", id="size before bound"
        ),
    ],
)
def test_claims_stay_as_they_were_created(inside: Inside, change: Json, text: str) -> None:
    created = inside.create("persistentvolumeclaims", claim())
    changed = {**created, "spec": {**created["spec"], **change}}
    if text:
        with refused(422, text):
            inside.update("persistentvolumeclaims", changed)
    else:
        assert inside.update("persistentvolumeclaims", changed)["spec"] == changed["spec"]


def test_a_bound_claim_stays_as_it_is_but_may_request_more(inside: Inside) -> None:
    created = inside.create("persistentvolumeclaims", claim(volumeName="v1", storageClassName="efs"))
    status = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
    bound = inside.update("persistentvolumeclaims", {**created, "status": status}, "status")

    def change(**spec: object) -> Json:
        return inside.update("persistentvolumeclaims", {**bound, "spec": {**bound["spec"], **spec}})

    with refused(422, "spec: is immutable"):
        change(volumeName="v2")
    with refused(422, "can not be less than previous value"):
        change(resources={"requests": {"storage": "1Mi"}})
    assert change(resources={"requests": {"storage": "2Gi"}})["spec"]["resources"] == {
        "requests": {"storage": "2Gi"}
    }


def test_volumes_keep_what_they_lead_to(inside: Inside) -> None:
    created = inside.create("persistentvolumes", volume())
    moved = {**created["spec"], "nfs": {"server": "127.0.0.1", "path": "/other"}}
    with refused(422, "spec.persistentvolumesource"):
        inside.update("persistentvolumes", {**created, "spec": moved})
    kept = {**created["spec"], "persistentVolumeReclaimPolicy": "Delete", "mountOptions": ["ro"]}
    assert inside.update("persistentvolumes", {**created, "spec": kept})["spec"] == kept


def test_classes_keep_their_parameters(inside: Inside) -> None:
    created = inside.create("storageclasses", storage_class(parameters={"a": "b"}))
    with refused(422, "parameters: field is immutable"):
        inside.update("storageclasses", {**created, "parameters": {"a": "c"}})
    assert inside.update("storageclasses", {**created, "allowVolumeExpansion": True})["allowVolumeExpansion"]


def test_pods_keep_all_but_their_images(inside: Inside) -> None:
    created = inside.create("pods", pod())
    (container,) = created["spec"]["containers"]
    newer = {**created["spec"], "containers": [{**container, "image": "busybox:2"}]}
    created = inside.update("pods", {**created, "spec": newer})
    moved = {**created["spec"], "nodeName": "elsewhere"}
    with refused(422, "spec: is immutable except images"):
        inside.update("pods", {**created, "spec": moved})


def test_the_role_of_a_grant_stays(inside: Inside) -> None:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"}
    grant = inside.create("rolebindings", {"metadata": {"name": "g"}, "roleRef": role})
    with refused(422, "roleRef: field is immutable"):
        inside.update("rolebindings", {**grant, "roleRef": {**role, "name": "two"}})


def test_a_driver_counts_its_changes(inside: Inside) -> None:
    created = inside.create("csidrivers", {"metadata": {"name": "d"}})
    assert "generation" not in created["metadata"]
    changed = inside.update("csidrivers", {**created, "spec": {**created["spec"], "podInfoOnMount": True}})
    assert changed["metadata"]["generation"] == 1


def test_the_conditions_of_a_pod_have_times(inside: Inside) -> None:
    created = inside.create("pods", pod())
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    found = inside.update("pods", {**created, "status": status}, "status")["status"]
    assert found["conditions"][0] == {
        "type": "Ready",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": None,
    }


def test_all_of_a_node_can_be_used_unless_it_says_otherwise(inside: Inside) -> None:
    node = inside.create("nodes", {"metadata": {"name": "n"}})
    assert node["status"]["nodeInfo"]["kubeletVersion"] == ""
    found = inside.update("nodes", {**node, "status": {"capacity": {"pods": "10"}}}, "status")
    assert found["status"]["allocatable"] == {"pods": "10"}
