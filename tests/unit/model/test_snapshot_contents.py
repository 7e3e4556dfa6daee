"""What must be done for a VolumeSnapshotContent, as csi-snapshotter decides."""

from dataclasses import replace
from typing import Any

import pytest

from kube_efs.kube.snapshots import read_content
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.snapshots import BEING_CREATED, BEING_DELETED, SnapshotContent

CREATED, DELETED = {BEING_CREATED: "yes"}, {BEING_DELETED: "yes"}
GROUP = {"groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-handle": "x"}


def content(**changes: Any) -> SnapshotContent:
    fields = {"name": "c", "uid": "1", "driver": "efs.csi.aws.com", "volume_handle": "fs-1::fsap-1"}
    return SnapshotContent(**{**fields, "snapshot_uid": "2", **changes})


@pytest.mark.parametrize(
    ("changes", "to_be_created", "to_be_deleted"),
    [
        pytest.param({}, True, False, id="new"),
        pytest.param({"annotations": CREATED}, True, False, id="creation began"),
        pytest.param({"is_ready": True}, False, False, id="ready"),
        pytest.param({"annotations": GROUP}, False, False, id="of a group"),
        pytest.param({"volume_handle": "", "given_handle": "x"}, False, False, id="given"),
        pytest.param({"deleting": True}, False, False, id="deleted without its snapshot"),
        pytest.param({"deleting": True, "annotations": DELETED}, False, True, id="deleted"),
        pytest.param(
            {"deleting": True, "annotations": CREATED},
            True,
            False,
            id="deleted early without its snapshot",
        ),
        pytest.param(
            {"deleting": True, "annotations": CREATED | DELETED},
            False,
            False,
            id="deleted early",
        ),
        pytest.param({"annotations": DELETED}, True, False, id="snapshot deleted, content not yet"),
        pytest.param(
            {"deleting": True, "volume_handle": "", "given_handle": "x", "snapshot_uid": ""},
            False,
            True,
            id="given and never used",
        ),
        pytest.param(
            {"deleting": True, "volume_handle": "", "given_handle": "x"}, False, False, id="given and in use"
        ),
    ],
)
def test_state_decides_what_is_done(
    changes: dict[str, Any], to_be_created: bool, to_be_deleted: bool
) -> None:
    found = content(**changes)
    assert (found.to_be_created, found.to_be_deleted) == (to_be_created, to_be_deleted)


@pytest.mark.parametrize(
    ("changes", "to_be_discarded"),
    [
        pytest.param({}, True, id="deleted early"),
        pytest.param({"deleting": False}, False, id="snapshot deleted, content not yet"),
        pytest.param({"annotations": CREATED}, False, id="deleted without its snapshot"),
        pytest.param({"annotations": DELETED}, False, id="never begun"),
        pytest.param({"is_ready": True}, False, id="ready"),
        pytest.param({"annotations": CREATED | DELETED | GROUP}, False, id="of a group"),
        pytest.param({"volume_handle": "", "given_handle": "x"}, False, id="given"),
    ],
)
def test_unfinished_copy_of_a_deleted_snapshot_is_discarded(
    changes: dict[str, Any], to_be_discarded: bool
) -> None:
    found = content(**{"deleting": True, "annotations": CREATED | DELETED, **changes})
    assert found.to_be_discarded is to_be_discarded
    assert [found.to_be_created, found.to_be_discarded, found.to_be_deleted].count(True) <= 1


@pytest.mark.parametrize("policy", list(ReclaimPolicy))
@pytest.mark.parametrize("annotations", [DELETED, CREATED | DELETED], ids=["complete", "unfinished"])
def test_only_a_deleted_content_with_the_policy_delete_needs_no_data(
    policy: ReclaimPolicy, annotations: dict[str, str]
) -> None:
    found = content(deleting=True, annotations=annotations, deletion_policy=policy)
    assert found.needs_data is (policy is not ReclaimPolicy.DELETE)
    assert replace(found, deleting=False).needs_data


@pytest.mark.parametrize(
    ("changes", "has_data"),
    [
        pytest.param({"handle": "x"}, True, id="complete"),
        pytest.param({}, False, id="never created"),
        pytest.param({"handle": "x", "deletion_policy": ReclaimPolicy.RETAIN}, False, id="retained"),
        pytest.param({"handle": "x", "is_of_group": True}, False, id="of a group"),
    ],
)
def test_only_complete_snapshots_of_the_policy_delete_have_data(
    changes: dict[str, Any], has_data: bool
) -> None:
    assert content(**changes).has_data is has_data


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("Delete", ReclaimPolicy.DELETE), ("Retain", ReclaimPolicy.RETAIN), ("Archive", ReclaimPolicy.RETAIN)],
)
def test_data_stays_with_an_unknown_policy(policy: str, expected: ReclaimPolicy) -> None:
    body = {"metadata": {"name": "c", "uid": "1"}, "spec": {"deletionPolicy": policy}}
    assert read_content(body).deletion_policy is expected


def test_own_writes_are_not_inputs() -> None:
    before = content()
    assert content(handle="x", problem="y", annotations=CREATED).inputs == before.inputs
    # A request of an earlier attempt can be late, and make a ready snapshot one that is not.
    assert content(is_ready=True).inputs != before.inputs
    assert content(annotations=DELETED).inputs != before.inputs
    assert content(deleting=True).inputs != before.inputs


@pytest.mark.parametrize("missing", ["name", "namespace", None])
def test_secret_needs_both_annotations(missing: str | None) -> None:
    start = "snapshot.storage.kubernetes.io/deletion-secret-"
    annotations = {f"{start}{one}": one for one in ("name", "namespace") if one != missing}
    assert content(annotations=annotations).secret == (None if missing else ("namespace", "name"))
