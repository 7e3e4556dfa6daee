"""Objects as the API server sends them, also those of other versions and with unusual values."""

from typing import Any

import pytest

from kube_efs.kube.reading import read_claim, read_storage_class, read_volume
from kube_efs.model.claims import Claim, ClaimPhase, DataSource, ReclaimPolicy, StorageClass
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.volumes import FINALIZER, ClaimReference, CsiSource, NfsSource, Volume, VolumePhase

CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {
        "labels": {"app": "shop"},
        "name": "efs-example",
        "namespace": "team",
        "uid": "4a2b",
        "resourceVersion": "71",
        "creationTimestamp": "2026-11-21T12:00:00Z",
        "finalizers": ["kubernetes.io/pvc-protection"],
        "annotations": {
            "volume.kubernetes.io/selected-node": "node-1",
            "efs-stunnel.gnuthought.com/rejected": "true",
            "efs-stunnel.gnuthought.com/reject-reason": "no such name",
        },
    },
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "5Gi"}},
        "selector": {"matchLabels": {"volume_name": "example"}},
        "storageClassName": "efs-stunnel",
        "volumeMode": "Filesystem",
    },
    "status": {"phase": "Pending"},
}


def test_claim_is_read() -> None:
    assert read_claim(CLAIM) == Claim(
        namespace="team",
        name="efs-example",
        uid=ClaimUid("4a2b"),
        resource_version="71",
        phase=ClaimPhase.PENDING,
        storage_class="efs-stunnel",
        labels={"app": "shop"},
        annotations=CLAIM["metadata"]["annotations"],
        match_labels={"volume_name": "example"},
        access_modes=("ReadWriteMany",),
        requested_storage="5Gi",
        selected_node="node-1",
        rejection="no such name",
    )


def test_claim_with_only_a_name_is_read() -> None:
    bare = {"metadata": {"name": "c", "namespace": "team", "uid": "u"}}
    assert read_claim(bare) == Claim(namespace="team", name="c", uid=ClaimUid("u"))


def with_spec(**fields: Any) -> dict[str, Any]:
    return {**CLAIM, "spec": {**CLAIM["spec"], **fields}}


def with_annotations(**annotations: str) -> dict[str, Any]:
    keys = {
        "beta_class": "volume.beta.kubernetes.io/storage-class",
        "rejected": "efs-stunnel.gnuthought.com/rejected",
        "reason": "efs-stunnel.gnuthought.com/reject-reason",
        "provisioner": "volume.kubernetes.io/storage-provisioner",
        "beta_provisioner": "volume.beta.kubernetes.io/storage-provisioner",
    }
    given = {keys[name]: value for name, value in annotations.items()}
    return {**CLAIM, "metadata": {**CLAIM["metadata"], "annotations": given}}


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        pytest.param({**CLAIM, "status": {"phase": "Bound"}}, "phase", ClaimPhase.BOUND, id="bound"),
        pytest.param({**CLAIM, "status": {"phase": "New"}}, "phase", ClaimPhase.PENDING, id="unknown phase"),
        pytest.param({**CLAIM, "status": None}, "phase", ClaimPhase.PENDING, id="no status"),
        pytest.param(
            {**CLAIM, "metadata": {**CLAIM["metadata"], "deletionTimestamp": "2026-11-21T12:00:00Z"}},
            "deleting",
            True,
            id="being deleted",
        ),
        pytest.param(with_spec(volumeName="pv"), "volume_name", "pv", id="with volumeName"),
        pytest.param(with_spec(storageClassName=""), "storage_class", "", id="no class requested"),
        pytest.param(with_spec(storageClassName=None), "storage_class", None, id="the default class"),
        pytest.param(with_annotations(beta_class="old"), "storage_class", "old", id="the annotation wins"),
        pytest.param(
            with_annotations(beta_class=""), "storage_class", "", id="the annotation wins when empty"
        ),
        pytest.param(
            with_annotations(provisioner="new", beta_provisioner="old"),
            "storage_provisioner",
            "new",
            id="the newer annotation wins",
        ),
        pytest.param(
            with_annotations(beta_provisioner="old"), "storage_provisioner", "old", id="the older annotation"
        ),
        pytest.param(with_annotations(), "storage_provisioner", None, id="unassigned"),
        pytest.param(with_spec(selector=None), "match_labels", None, id="no selector"),
        pytest.param(with_spec(selector={}), "match_labels", {}, id="an empty selector"),
        pytest.param(
            with_spec(selector={"matchExpressions": [{"key": "a", "operator": "Exists"}]}),
            "match_labels",
            {},
            id="expressions are ignored",
        ),
        pytest.param(with_spec(volumeMode="Block"), "is_block", True, id="a block device"),
        pytest.param(
            with_spec(dataSource={"kind": "PersistentVolumeClaim", "name": "x"}),
            "data_source",
            DataSource(kind="PersistentVolumeClaim", name="x"),
        ),
        pytest.param(
            with_spec(dataSourceRef={"apiGroup": "a.io", "kind": "Any", "name": "x", "namespace": "n"}),
            "data_source",
            DataSource(kind="Any", name="x", group="a.io", namespace="n"),
        ),
        pytest.param(with_spec(), "data_source", None, id="no data source"),
        pytest.param(with_spec(resources={}), "requested_storage", "1Gi", id="no size"),
        pytest.param(with_annotations(rejected="false", reason="x"), "rejection", None, id="not rejected"),
        pytest.param(with_annotations(reason="x"), "rejection", None, id="a reason only"),
        pytest.param(with_annotations(rejected="true"), "rejection", "", id="rejected without a reason"),
    ],
)
def test_each_claim_field_is_read(body: dict[str, Any], field: str, value: object) -> None:
    assert getattr(read_claim(body), field) == value


def test_storage_class_is_read() -> None:
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "efs-stunnel", "uid": "u"},
        "provisioner": "gnuthought.com/efs-stunnel",
        "parameters": {"default_file_system_id": "auto"},
        "reclaimPolicy": "Retain",
        "mountOptions": ["hard"],
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    assert read_storage_class(body) == StorageClass(
        name="efs-stunnel",
        provisioner="gnuthought.com/efs-stunnel",
        parameters={"default_file_system_id": "auto"},
        reclaim_policy=ReclaimPolicy.RETAIN,
        mount_options=("hard",),
        waits_for_consumer=True,
    )


def test_storage_class_with_only_a_provisioner_is_read() -> None:
    body = {"metadata": {"name": "c"}, "provisioner": "p", "parameters": None}
    assert read_storage_class(body) == StorageClass(name="c", provisioner="p")


def test_volume_of_the_older_system_is_read() -> None:
    body = {
        "metadata": {
            "name": "efs-stunnel-fs-1-team-example-abcde",
            "uid": "u",
            "labels": {"volume_name": "example"},
            "annotations": {
                "pv.kubernetes.io/provisioned-by": "gnuthought.com/efs-stunnel",
                "efs-stunnel.gnuthought.com/file-system-id": "fs-1",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "team", "name": "efs-example", "uid": "4a2b", "apiVersion": "v1"},
            "mountOptions": ["port=20490"],
            "nfs": {"server": "127.0.0.1", "path": "/team/example"},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "efs-stunnel",
        },
        "status": {"phase": "Released"},
    }
    assert read_volume(body) == Volume(
        name="efs-stunnel-fs-1-team-example-abcde",
        uid="u",
        phase=VolumePhase.RELEASED,
        reclaim_policy=ReclaimPolicy.DELETE,
        storage_class="efs-stunnel",
        provisioned_by="gnuthought.com/efs-stunnel",
        file_system_id="fs-1",
        claim=ClaimReference(namespace="team", name="efs-example", uid=ClaimUid("4a2b")),
        nfs=NfsSource(server="127.0.0.1", path="/team/example"),
        mount_options=("port=20490",),
        labels={"volume_name": "example"},
        access_modes=("ReadWriteMany",),
        capacity="1Gi",
    )


def test_volume_of_efs_provisioner_is_read() -> None:
    body = {
        "metadata": {
            "name": "pvc-4a2b",
            "uid": "u",
            "finalizers": [
                "kubernetes.io/pv-protection",
                "external-provisioner.volume.kubernetes.io/finalizer",
            ],
            "annotations": {
                "pv.kubernetes.io/provisioned-by": "example.com/aws-efs",
                "pv.beta.kubernetes.io/gid": "2001",
                "volume.beta.kubernetes.io/storage-class": "aws-efs",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Mi"},
            "claimRef": {"namespace": "team", "name": "efs", "uid": "4a2b"},
            "nfs": {"server": "fs-1.efs.us-east-1.amazonaws.com", "path": "/pvs/efs-pvc-4a2b"},
            "persistentVolumeReclaimPolicy": "Delete",
        },
        "status": {"phase": "Bound"},
    }
    assert read_volume(body) == Volume(
        name="pvc-4a2b",
        uid="u",
        phase=VolumePhase.BOUND,
        reclaim_policy=ReclaimPolicy.DELETE,
        storage_class="aws-efs",
        provisioned_by="example.com/aws-efs",
        gid=2001,
        finalizers=("kubernetes.io/pv-protection", FINALIZER),
        claim=ClaimReference(namespace="team", name="efs", uid=ClaimUid("4a2b")),
        nfs=NfsSource(server="fs-1.efs.us-east-1.amazonaws.com", path="/pvs/efs-pvc-4a2b"),
        access_modes=("ReadWriteMany",),
        capacity="1Mi",
    )


@pytest.mark.parametrize("text", ["", "-1", "2147483648", "2000.0", "two", " 2000", "9" * 5000])
def test_group_id_that_the_kubelet_refuses_is_none(text: str) -> None:
    body = {"metadata": {"name": "pv", "annotations": {"pv.beta.kubernetes.io/gid": text}}}
    assert read_volume(body).gid is None


def test_csi_volume_bound_to_a_claim_by_name_is_read() -> None:
    body = {
        "metadata": {"name": "pv", "deletionTimestamp": "2026-11-21T12:00:00Z"},
        "spec": {
            "csi": {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"},
            "claimRef": {"namespace": "team", "name": "data"},
        },
    }
    assert read_volume(body) == Volume(
        name="pv",
        deleting=True,
        csi=CsiSource(handle="fs-1"),
        claim=ClaimReference(namespace="team", name="data", uid=None),
        capacity="",
    )


def test_volume_without_a_policy_keeps_its_data() -> None:
    # The API's default for volumes; the default for classes is Delete.
    assert read_volume({"metadata": {"name": "pv"}}).reclaim_policy is ReclaimPolicy.RETAIN


@pytest.mark.parametrize(
    ("annotations", "options"),
    [
        pytest.param({}, ("hard",), id="the field"),
        pytest.param(
            {"volume.beta.kubernetes.io/mount-options": "ro, port=20490"},
            ("ro", "port=20490"),
            id="the annotation",
        ),
        pytest.param({"volume.beta.kubernetes.io/mount-options": ""}, (), id="the annotation, empty"),
    ],
)
def test_mount_options_are_read_as_the_kubelet_does(
    annotations: dict[str, str], options: tuple[str, ...]
) -> None:
    body = {"metadata": {"name": "pv", "annotations": annotations}, "spec": {"mountOptions": ["hard"]}}
    assert read_volume(body).mount_options == options
