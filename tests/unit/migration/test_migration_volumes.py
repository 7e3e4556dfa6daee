"""The CSI volume for an NFS volume, its journal, and the selection of volumes."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.kube.reading import read_volume
from kube_efs.migration.errors import MigrationRefused
from kube_efs.migration.journal import ANNOTATION, Journal, read_journal, write_journal
from kube_efs.migration.manifests import plain_claim
from kube_efs.migration.marks import MARK, Mark, marked, read_mark
from kube_efs.migration.plan import (
    Direction,
    Migration,
    MigrationRefusal,
    MigrationState,
    Selection,
    plan,
)
from kube_efs.migration.translating import csi_name
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.directories import Relation
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.volumes import FINALIZER, PROVISIONED_BY, locate

FS = FileSystemId("fs-0123456789abcdef0")
DELETE = ReclaimPolicy.DELETE
UID = "5f0c3f3e-6d0c-4c1e-9d55-2d1f9b9f7a10"
DNS = f"{FS}.efs.us-east-1.amazonaws.com"
TUNNEL = "gnuthought.com/efs-stunnel"
TARGETS = TunnelTargets(targets={FS: TunnelTarget(file_system_id=FS, port=20490)})


def _claim(name: str = "data", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": UID,
            "resourceVersion": "7",
            "labels": {"app": "web"},
            "annotations": {"pv.kubernetes.io/bind-completed": "yes", "owner": "blue"},
            "ownerReferences": [{"kind": "StatefulSet", "name": "web"}],
            # Those of Kubernetes, of snapshot-controller and of csi-provisioner, which add them again.
            "finalizers": [
                "kubernetes.io/pvc-protection",
                "snapshot.storage.kubernetes.io/pvc-as-source-protection",
                "provisioner.storage.kubernetes.io/cloning-protection",
            ],
            "managedFields": [{}],
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "selector": {"matchLabels": {"volume_name": "data"}},
            "storageClassName": "efs",
            "volumeName": "old",
            "of-a-newer-version": 1,
            **spec,
        },
        "status": {"phase": "Bound"},
    }


def _volume(server: str = "127.0.0.1", path: str = "/team/data", **changes: Any) -> dict[str, Any]:
    annotations = {
        PROVISIONED_BY: TUNNEL,
        "efs-stunnel.gnuthought.com/file-system-id": FS,
        "pv.kubernetes.io/bound-by-controller": "yes",
        **changes.pop("annotations", {}),
    }
    return {
        "metadata": {
            "name": changes.pop("name", "old"),
            "uid": "volume",
            "labels": {"volume_name": "data"},
            "annotations": {key: value for key, value in annotations.items() if value is not None},
            "finalizers": ["kubernetes.io/pv-protection"],
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "team", "name": "data", "uid": UID, "resourceVersion": "3"},
            "mountOptions": ["port=20490", "nfsvers=4.1", "hard"],
            "nfs": {"server": server, "path": path},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "efs",
            "volumeMode": "Filesystem",
            **changes,
        },
        "status": {"phase": "Bound"},
    }


DIRECTORY = {
    "server": DNS,
    "path": f"/base/data-pvc-{UID}",
    "name": f"pvc-{UID}",
    "mountOptions": ["vers=4.1"],
    "annotations": {
        PROVISIONED_BY: "example.com/aws-efs",
        "pv.beta.kubernetes.io/gid": "40001",
        "efs-stunnel.gnuthought.com/file-system-id": None,
    },
}


def _plan(
    *volumes: Mapping[str, Any],
    claims: tuple[Mapping[str, Any], ...] = (),
    direction: Direction = Direction.FORWARD,
    selection: Selection | None = None,
    new_class: str | None = None,
    targets: TunnelTargets = TARGETS,
    servers: Mapping[str, FileSystemId] | None = None,
) -> tuple[Migration | MigrationRefusal, ...]:
    found = {("team", one["metadata"]["name"]): one for one in claims or (_claim(),)}
    state = MigrationState(volumes=volumes, claims=found, targets=targets, servers=servers or {})
    return plan(state, selection or Selection(), direction, new_class=new_class)


def _migrated(**changes: Any) -> Migration:
    (found,) = _plan(_volume(**changes))
    assert isinstance(found, Migration), found
    return found


def _begun(migration: Migration) -> dict[str, Any]:
    """The CSI volume as the API server returns it at the end of the migration."""
    made = dict(migration.csi_volume)
    claim = {**made["spec"]["claimRef"], "uid": UID}
    policy = str(migration.journal.policy)
    return {
        **made,
        "metadata": {**made["metadata"], "uid": "csi"},
        "spec": {**made["spec"], "claimRef": claim, "persistentVolumeReclaimPolicy": policy},
        "status": {"phase": "Bound"},
    }


def test_tunnel_volume_becomes_a_csi_volume_of_the_same_directory() -> None:
    made = _migrated().csi_volume
    assert _migrated().move.source_policy is ReclaimPolicy.DELETE
    assert made["metadata"]["name"] == "old-csi"
    assert made["metadata"]["labels"] == {"volume_name": "data"}
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert made["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": "team",
            "name": "data",
        },
        "csi": {"driver": "efs.csi.aws.com", "volumeHandle": f"efs:{FS}:/./team/data"},
        "mountOptions": ["nfsvers=4.1", "hard"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "efs",
        "volumeMode": "Filesystem",
    }


def test_directory_volume_keeps_its_group_and_base() -> None:
    migration = _migrated(**DIRECTORY)
    metadata, spec = migration.csi_volume["metadata"], migration.csi_volume["spec"]
    assert spec["csi"]["volumeHandle"] == f"efs:{FS}:/base/./data-pvc-{UID}"
    assert spec["mountOptions"] == ["vers=4.1"]
    assert metadata["annotations"]["pv.beta.kubernetes.io/gid"] == "40001"
    assert metadata["annotations"][PROVISIONED_BY] == "efs.csi.aws.com"
    assert migration.notes == ("its traffic will be encrypted",)


@pytest.mark.parametrize(
    ("changes", "handle", "policy"),
    [
        pytest.param({}, f"efs:{FS}:/./team/data", "Delete", id="tunnel volume"),
        pytest.param(DIRECTORY, f"efs:{FS}:/base/./data-pvc-{UID}", "Delete", id="directory volume"),
        pytest.param(
            {"persistentVolumeReclaimPolicy": "Retain"},
            f"efs:{FS}:/./team/data",
            "Retain",
            id="retained before",
        ),
        pytest.param(
            {"annotations": {PROVISIONED_BY: None}}, f"{FS}:/team/data", "Retain", id="written by hand"
        ),
        pytest.param({"path": "/other/data"}, f"{FS}:/other/data", "Retain", id="of another namespace"),
        pytest.param({"path": "/team//data"}, f"{FS}:/team/data", "Retain", id="another form"),
        pytest.param({"path": "/"}, f"{FS}:/", "Retain", id="whole file system"),
        pytest.param(
            {**DIRECTORY, "path": "/base/precious"},
            f"{FS}:/base/precious",
            "Retain",
            id="another directory name",
        ),
        pytest.param(
            {"persistentVolumeReclaimPolicy": "Recycle"}, f"efs:{FS}:/./team/data", "Retain", id="recycled"
        ),
    ],
)
def test_only_removable_volumes_are_removable_after_the_migration(
    changes: dict[str, Any], handle: str, policy: str
) -> None:
    migration = _migrated(**changes)
    spec = migration.csi_volume["spec"]
    assert spec["csi"]["volumeHandle"] == handle
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"  # until the claim has arrived
    assert migration.move.policy == ReclaimPolicy(policy)
    is_removable = parse_volume_handle(handle).base is not None
    assert (PROVISIONED_BY in migration.csi_volume["metadata"]["annotations"]) == is_removable
    if policy == "Delete":
        assert is_removable


_NAMES = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=8)


@given(st.lists(_NAMES | st.sampled_from([".", "..", "team", "a:b"]), max_size=4), st.booleans())
def test_any_path_gives_the_same_data_or_a_refusal(names: list[str], is_directory_volume: bool) -> None:
    changes: dict[str, Any] = DIRECTORY if is_directory_volume else {}
    (found,) = _plan(_volume(**{**changes, "path": "/" + "/".join(names)}))
    if isinstance(found, Migration):
        made = read_volume(found.csi_volume)
        assert locate(made, TARGETS) == locate(read_volume(found.journal.volume), TARGETS)
        assert made.csi
        handle = parse_volume_handle(made.csi.handle)
        assert handle.base is None or handle.directory.relation_to(handle.base) is Relation.BELOW


def test_mount_options_are_converted_for_the_driver() -> None:
    migration = _migrated(
        nfs={"server": "127.0.0.1", "path": "/team/data", "readOnly": True},
        mountOptions=["port=20490", "soft"],
    )
    assert migration.csi_volume["spec"]["mountOptions"] == ["soft", "ro"]
    migration = _migrated(
        mountOptions=["port=20490", "soft"],
        annotations={"volume.beta.kubernetes.io/mount-options": "port=20490, nolock,"},
    )
    assert migration.csi_volume["spec"]["mountOptions"] == ["nolock"]
    (refusal,) = _plan(_volume(mountOptions=["port=20490", "clientaddr=10.0.0.1"]))
    assert isinstance(refusal, MigrationRefusal)
    assert "clientaddr=10.0.0.1" in str(refusal.error)


@pytest.mark.parametrize(
    ("changes", "targets", "servers", "place"),
    [
        pytest.param({"server": "efs.example.com"}, TARGETS, {"efs.example.com": FS}, FS, id="named server"),
        pytest.param(
            {"annotations": {"efs-stunnel.gnuthought.com/file-system-id": None}},
            TARGETS,
            {},
            FS,
            id="its port",
        ),
        pytest.param(
            {
                "server": "nas.example.com",
                "annotations": {"efs-stunnel.gnuthought.com/file-system-id": None},
            },
            TARGETS,
            {},
            None,
            id="foreign server",
        ),
        pytest.param({"server": "efs.example.com"}, TARGETS, {}, FS, id="annotated name of an own server"),
    ],
)
def test_location_of_the_data_is_found(
    changes: dict[str, Any], targets: TunnelTargets, servers: dict[str, FileSystemId], place: str | None
) -> None:
    found = _plan(_volume(**changes), targets=targets, servers=servers)
    assert [one.place for one in found if isinstance(one, Migration)] == (
        [f"{place}:/team/data"] if place else []
    )


@pytest.mark.parametrize(
    ("changes", "selection", "about"),
    [
        pytest.param(
            {"annotations": {"efs-stunnel.gnuthought.com/file-system-id": None}},
            Selection(),
            "does not name a known file system",
            id="unknown port",
        ),
        pytest.param(
            {
                "server": "nas.example.com",
                "annotations": {"efs-stunnel.gnuthought.com/file-system-id": None},
            },
            Selection(claims=frozenset({"data"})),
            "does not name a known file system",
            id="another server name",
        ),
        pytest.param(
            {"path": "/team/a:b"}, Selection(), "has a colon", id="path that a handle cannot contain"
        ),
        pytest.param(
            {"claimRef": {"namespace": "team", "name": "data", "uid": "x"}},
            Selection(),
            "does not exist any more",
            id="claim does not exist",
        ),
    ],
)
def test_refusal_contains_the_reason(changes: dict[str, Any], selection: Selection, about: str) -> None:
    (refusal,) = _plan(_volume(**changes), selection=selection, targets=TunnelTargets())
    assert isinstance(refusal, MigrationRefusal)
    assert about in str(refusal.error)


@pytest.mark.parametrize("server", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_remedy_for_an_unknown_tunnel_is_only_the_annotation(server: str) -> None:
    annotation = "efs-stunnel.gnuthought.com/file-system-id"
    (refusal,) = _plan(_volume(server, annotations={annotation: None}), targets=TunnelTargets())
    assert isinstance(refusal, MigrationRefusal)
    assert annotation in refusal.error.remedy
    assert "--server" not in refusal.error.remedy


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        pytest.param(Selection(), 1, id="all claims"),
        pytest.param(
            Selection(namespace="team", storage_class="efs", claims=frozenset({"data"})),
            1,
            id="selected by namespace, class and name",
        ),
        pytest.param(Selection(namespace="other"), 0, id="another namespace"),
        pytest.param(Selection(storage_class="gp3"), 0, id="another class"),
        pytest.param(Selection(claims=frozenset({"logs"})), 0, id="another claim"),
    ],
)
def test_selection_limits_the_plan(selection: Selection, count: int) -> None:
    begun = _begun(_migrated())
    assert len(_plan(_volume(), selection=selection)) == count
    assert len(_plan(_volume(), begun, selection=selection)) == count
    assert len(_plan(begun, selection=selection, direction=Direction.BACK)) == count


def test_root_volumes_and_finished_migrations_are_not_planned() -> None:
    assert _plan(_volume(storageClassName="efs-stunnel-system")) == ()
    assert _plan(_begun(_migrated())) == ()


def test_volume_that_was_copied_for_another_claim_is_not_migrated() -> None:
    begun = _begun(_migrated())
    reference = {"namespace": "other", "name": "db", "uid": "another"}
    copy = {
        **begun,
        "metadata": {**begun["metadata"], "name": "shared"},
        "spec": {**begun["spec"], "claimRef": reference},
    }
    for selection in (Selection(), Selection(namespace="other")):
        assert _plan(copy, selection=selection, direction=Direction.BACK) == ()
    (migration,) = _plan(begun, copy, direction=Direction.BACK)
    assert isinstance(migration, Migration)
    assert migration.csi == "old-csi"


@pytest.mark.parametrize(
    ("mark", "policy", "expected"),
    [
        pytest.param(None, "Retain", "Retain", id="of an earlier version"),
        pytest.param(Mark.ARRIVED, "Retain", "Retain", id="chosen"),
        pytest.param(Mark.ARRIVED, "Delete", "Delete", id="restored"),
        pytest.param(Mark.ARRIVING, "Retain", "Delete", id="kept on the way to it"),
        pytest.param(Mark.LEAVING, "Retain", "Delete", id="kept on the way from it"),
    ],
)
@pytest.mark.parametrize("old_exists", [False, True])
def test_only_a_policy_of_an_administrator_is_kept_on_the_way_back(
    mark: Mark | None, policy: str, expected: str, *, old_exists: bool
) -> None:
    begun = _begun(_migrated())
    begun["spec"]["persistentVolumeReclaimPolicy"] = policy
    found = marked(begun, mark) if mark else begun
    (back,) = _plan(found, *([_volume()] if old_exists else []), direction=Direction.BACK)
    assert isinstance(back, Migration)
    assert back.move.policy == ReclaimPolicy(expected)
    assert back.move.source_policy == ReclaimPolicy(policy)


def test_volume_that_had_to_get_retain_gets_its_first_policy_on_the_way_back() -> None:
    begun = marked(_begun(_migrated(path="/other/data")), Mark.ARRIVED)
    assert begun["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    (back,) = _plan(begun, direction=Direction.BACK)
    assert isinstance(back, Migration)
    assert back.move.policy is DELETE


def test_policy_that_was_chosen_for_the_nfs_volume_is_that_of_a_migration_that_continues() -> None:
    retained = _volume(persistentVolumeReclaimPolicy="Retain")
    begun = _begun(_migrated())
    for found, expected in ((retained, ReclaimPolicy.RETAIN), (marked(retained, Mark.LEAVING), DELETE)):
        (onwards,) = _plan(found, begun)
        assert isinstance(onwards, Migration)
        assert onwards.move.policy is expected


def test_migration_continues_when_the_old_volume_is_gone_before_its_last_step() -> None:
    begun = _begun(_migrated())
    assert _plan(marked(begun, Mark.ARRIVED)) == ()
    (onwards,) = _plan(marked(begun, Mark.ARRIVING))
    assert isinstance(onwards, Migration)
    assert onwards.move.policy is DELETE


def test_marks_are_not_copied_to_another_volume_or_claim() -> None:
    (migration,) = _plan(marked(_volume(), Mark.ARRIVED), claims=(marked(_claim(), Mark.LEAVING),))
    assert isinstance(migration, Migration)
    for body in (migration.csi_volume, migration.journal.volume, migration.journal.claim):
        assert MARK not in body["metadata"]["annotations"]
    assert read_mark(migration.target_volume) is Mark.ARRIVING


def test_new_claim_matches_the_old_one_except_for_its_volume() -> None:
    (migration,) = _plan(_volume(), new_class="efs-csi")
    assert isinstance(migration, Migration)
    claim = migration.new_claim(migration.journal)
    assert claim == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data",
            "namespace": "team",
            "labels": {"app": "web"},
            "annotations": {"owner": "blue"},
            "ownerReferences": [{"kind": "StatefulSet", "name": "web"}],
        },
        "spec": {**_claim()["spec"], "volumeName": "old-csi", "storageClassName": "efs-csi"},
    }
    assert migration.csi_volume["spec"]["storageClassName"] == "efs-csi"


def test_rollback_restores_the_first_volume_and_class() -> None:
    (migration,) = _plan(_volume(), new_class="efs-csi")
    assert isinstance(migration, Migration)
    (back,) = _plan(_begun(migration), direction=Direction.BACK)
    assert isinstance(back, Migration)
    move = back.move
    assert (move.source, move.target, move.policy) == ("old-csi", "old", ReclaimPolicy.DELETE)
    volume = read_volume(back.target_volume)
    first = read_volume(_volume())
    assert (volume.nfs, volume.mount_options, volume.file_system_id) == (
        first.nfs,
        first.mount_options,
        first.file_system_id,
    )
    assert volume.reclaim_policy is ReclaimPolicy.RETAIN  # until the claim is back
    claim = back.new_claim(back.journal)
    assert (claim["spec"]["volumeName"], claim["spec"]["storageClassName"]) == ("old", "efs")


def test_rollback_to_a_reassigned_port_is_refused() -> None:
    other = FileSystemId("fs-0000000000000000f")
    targets = TunnelTargets(targets={other: TunnelTarget(file_system_id=other, port=20490)})
    (refusal,) = _plan(_begun(_migrated()), direction=Direction.BACK, targets=targets)
    assert isinstance(refusal, MigrationRefusal)
    assert f"20490 now leads to {other}" in str(refusal.error)


def test_class_annotation_of_kubernetes_1_5_becomes_the_field() -> None:
    body = _claim()
    body["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"] = "slow"
    plain = plain_claim(body)
    assert plain["spec"]["storageClassName"] == "slow"
    assert plain["metadata"]["annotations"] == {"owner": "blue"}


def test_name_of_the_new_volume_is_valid_and_unique() -> None:
    assert csi_name("old") == "old-csi"
    long = csi_name("a" * 253)
    assert len(long) == 253
    assert long != csi_name("a" * 252)


def test_written_journal_is_read_back() -> None:
    journal = _migrated().journal
    assert read_journal(write_journal(journal), volume="old-csi") == journal
    assert isinstance(journal, Journal)


@pytest.mark.parametrize(
    ("text", "about"),
    [
        pytest.param("yes", "was not written by this command", id="not JSON"),
        pytest.param("[]", "was not written by this command", id="another document"),
        pytest.param('{"policy": "Delete"}', "was not written by this command", id="truncated"),
        pytest.param(None, "was written by a newer version", id="another version"),
    ],
)
def test_unreadable_journal_is_refused(text: str | None, about: str) -> None:
    if text is None:
        text = json.dumps({**json.loads(write_journal(_migrated().journal)), "version": 2})
    with pytest.raises(MigrationRefused, match=about):
        read_journal(text, volume="old-csi")
    begun = _begun(_migrated())
    begun["metadata"]["annotations"][ANNOTATION] = text
    (refusal,) = _plan(begun, direction=Direction.BACK)
    assert isinstance(refusal, MigrationRefusal)
