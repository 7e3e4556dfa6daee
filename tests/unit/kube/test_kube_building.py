"""The objects that are sent, as whole-file snapshots for review."""

from typing import Any

import pytest
import yaml
from lightkube.models.core_v1 import NodeSelectorRequirement, NodeSelectorTerm
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from kube_efs.kube.building import WorkerPod, build_claim, build_config_map, build_volume, build_worker_pod
from kube_efs.kube.reading import read_claim, read_volume
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.volumes import ClaimReference, NfsSource, Volume


class _Yaml(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "yaml"


@pytest.fixture
def manifest(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(_Yaml)


def rendered(found: Any) -> str:
    return str(yaml.safe_dump(found.to_dict()))


VOLUME = Volume(
    name="efs-stunnel-fs-1-team-example-ddxoz",
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


def test_volume_matches_its_snapshot(manifest: SnapshotAssertion) -> None:
    assert rendered(build_volume(VOLUME)) == manifest


def test_built_volume_is_read_back() -> None:
    assert read_volume(build_volume(VOLUME).to_dict()) == VOLUME


def test_volume_without_a_claim_has_no_empty_fields() -> None:
    body = build_volume(Volume(name="pv")).to_dict()
    assert body["metadata"] == {"name": "pv", "annotations": {}}
    assert not {"claimRef", "nfs"} & body["spec"].keys()


def test_root_claim_matches_its_snapshot(manifest: SnapshotAssertion) -> None:
    claim = build_claim(
        namespace="kube-efs",
        name="efs-stunnel-fs-1",
        storage_class="efs-stunnel-system",
        match_labels={"file_system_id": "fs-1", "root_key": "0123456789"},
        annotations={"volume.beta.kubernetes.io/storage-provisioner": "gnuthought.com/efs-stunnel"},
        access_modes=("ReadWriteMany",),
        storage="1Gi",
    )
    assert rendered(claim) == manifest
    assert read_claim({**claim.to_dict(), "metadata": {**claim.to_dict()["metadata"], "uid": "u"}}).name


def test_config_map_matches_its_snapshot(manifest: SnapshotAssertion) -> None:
    built = build_config_map(
        namespace="kube-efs",
        name="efs-stunnel",
        labels={"component": "efs-stunnel"},
        data={"efs-stunnel.yaml": "efs_stunnel_targets: {}\nlast_update: '2026-11-21T12:00:00Z'\n"},
    )
    assert rendered(built) == manifest


def test_worker_pod_matches_its_snapshot(manifest: SnapshotAssertion) -> None:
    ordinary = NodeSelectorRequirement(
        key="eks.amazonaws.com/compute-type", operator="NotIn", values=["fargate", "hybrid"]
    )
    worker = WorkerPod(
        namespace="kube-efs",
        name="efs-init-fs-1-team-example-abcde",
        labels={"component": "efs-worker"},
        annotations={"efs-stunnel.gnuthought.com/file-system-id": "fs-1"},
        image="registry.example/kube-efs:0.1.0",
        arguments=["worker", "make", "--root", "/efs", "--", "/team/example", "/team/$(touch x); -rf"],
        service_account="efs-worker",
        root_claim="efs-stunnel-fs-1",
        mount_path="/efs",
        timeout_seconds=300,
        node_selector={"kubernetes.io/os": "linux"},
        node_terms=[NodeSelectorTerm(matchExpressions=[ordinary])],
    )
    assert rendered(build_worker_pod(worker)) == manifest
