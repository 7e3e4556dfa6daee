"""The targets that a node serves after changes of the document."""

from dataclasses import replace
from pathlib import Path

import pytest

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import Rejection, TunnelTarget, TunnelTargets
from kube_efs.model.errors import InvalidValue
from kube_efs.tunnels.config_map import Served, apply_document, drop_lingering, load_served, save_served

FS_1, FS_2, FS_3 = (FileSystemId(f"fs-{number}") for number in (1, 2, 3))


def document(**ports: int) -> TunnelTargets:
    """``fs_1=20490`` for each file system."""
    ids = {FileSystemId(name.replace("_", "-")): port for name, port in ports.items()}
    return TunnelTargets(targets={fs: TunnelTarget(file_system_id=fs, port=port) for fs, port in ids.items()})


def ports(targets: tuple[TunnelTarget, ...]) -> dict[str, int]:
    return {target.file_system_id: target.port for target in targets}


def lingering(served: Served) -> dict[str, int]:
    return ports(served.lingering)


def after(*documents: TunnelTargets) -> Served:
    served = Served()
    for one in documents:
        served = apply_document(served, one, ())
    return served


def rejected(fs: FileSystemId) -> Rejection:
    return Rejection(
        entry=fs, error=InvalidValue("is not a valid port", field=f"{fs}.stunnel_port", value="x")
    )


def test_document_is_served_unchanged() -> None:
    served = after(document(fs_1=20490, fs_2=20491))
    assert ports(served.current) == {"fs-1": 20490, "fs-2": 20491}
    assert (served.lingering, served.waiting, served.rejections) == ((), (), ())


def test_removed_target_lingers() -> None:
    served = after(document(fs_1=20490, fs_2=20491), document(fs_2=20491))
    assert ports(served.current) == {"fs-2": 20491}
    assert lingering(served) == {"fs-1": 20490}


def test_returning_target_no_longer_lingers() -> None:
    served = after(document(fs_1=20490), document(), document(fs_1=20490))
    assert ports(served.current) == {"fs-1": 20490}
    assert served.lingering == ()


def test_lingering_port_is_not_reassigned() -> None:
    served = after(document(fs_1=20490), document(fs_2=20490))
    assert served.current == ()
    assert ports(served.waiting) == {"fs-2": 20490}
    served = drop_lingering(served, {20490})
    assert ports(served.current) == {"fs-2": 20490}


def test_removed_waiting_target_does_not_linger() -> None:
    served = after(document(fs_1=20490), document(fs_2=20490), document(fs_3=20490))
    assert lingering(served) == {"fs-1": 20490}
    assert ports(served.waiting) == {"fs-3": 20490}


def test_new_port_is_served_next_to_the_old_one() -> None:
    served = after(document(fs_1=20490), document(fs_1=20499))
    assert ports(served.current) == {"fs-1": 20499}
    assert lingering(served) == {"fs-1": 20490}


def test_swapped_ports_wait_for_each_other() -> None:
    served = after(document(fs_1=20490, fs_2=20491), document(fs_1=20491, fs_2=20490))
    assert served.current == ()
    served = drop_lingering(served, {20491})
    assert ports(served.current) == {"fs-1": 20491}
    assert ports(served.waiting) == {"fs-2": 20490}


def test_only_lingering_targets_release_their_port() -> None:
    served = after(document(fs_1=20490, fs_2=20491), document(fs_2=20491))
    assert drop_lingering(served, {20491}) == served
    assert lingering(drop_lingering(served, {20490})) == {}


def test_entry_that_becomes_unreadable_is_kept() -> None:
    served = apply_document(after(document(fs_1=20490, fs_2=20491)), document(fs_2=20491), [rejected(FS_1)])
    assert ports(served.current) == {"fs-1": 20490, "fs-2": 20491}
    assert served.lingering == ()
    assert [one.entry for one in served.rejections] == ["fs-1"]


def test_port_of_an_unreadable_entry_is_not_reassigned() -> None:
    served = apply_document(after(document(fs_1=20490)), document(fs_3=20490), [rejected(FS_1)])
    assert ports(served.current) == {"fs-1": 20490}
    assert str(served.rejections[1].error) == "fs-3.stunnel_port: 20490 is the port of fs-1"


@pytest.mark.parametrize("entry", ["fs-2", "../../etc", ""])
def test_unknown_unreadable_entry_is_only_reported(entry: str) -> None:
    served = apply_document(
        after(document(fs_1=20490)), document(fs_1=20490), [rejected(FileSystemId(entry))]
    )
    assert ports(served.current) == {"fs-1": 20490}
    assert [one.entry for one in served.rejections] == [entry]


def unused(document: TunnelTargets, *ids: FileSystemId) -> TunnelTargets:
    return replace(document, unused=frozenset(ids))


def test_unused_target_is_not_served() -> None:
    served = after(unused(document(fs_1=20490, fs_2=20491), FS_1))
    assert ports(served.current) == {"fs-2": 20491}
    assert (served.lingering, served.waiting) == ((), ())


def test_target_lingers_when_it_is_no_longer_used() -> None:
    served = after(document(fs_1=20490), unused(document(fs_1=20490), FS_1))
    assert (served.current, served.waiting) == ((), ())
    assert lingering(served) == {"fs-1": 20490}
    assert drop_lingering(served, {20490}).lingering == ()


def test_target_that_is_used_again_no_longer_lingers() -> None:
    served = after(document(fs_1=20490), unused(document(fs_1=20490), FS_1), document(fs_1=20490))
    assert ports(served.current) == {"fs-1": 20490}
    assert served.lingering == ()


def test_stored_targets_stay_unused(tmp_path: Path) -> None:
    served = after(document(fs_1=20490, fs_2=20491), unused(document(fs_1=20490, fs_2=20491), FS_1))
    save_served(tmp_path / "targets.json", served)
    assert load_served(tmp_path / "targets.json") == served
