from pathlib import Path
from typing import Any

import pytest

from tinykube.errors import InvalidValue
from tinykube.kubelet.launch import Bind, Launch
from tinykube.kubelet.planning import ContainerPaths, NodePaths, plan_launch
from tinykube.kubelet.pods import Container, Identity, Pod, VolumeMount
from tinykube.kubelet.volume_makers import Mounted

PATHS = ContainerPaths(scratch=Path("/k/scratch"), message=Path("/k/message"), log=Path("/k/log"))
MESSAGE = Bind(source="/k/message", target="/dev/termination-log")
MOUNTED = {
    "efs": Mounted(path=Path("/efs"), groups=(7000,)),
    "config": Mounted(path=Path("/config"), read_only=True),
}


def plan(pod: Pod | None = None, **fields: Any) -> Launch:
    return plan_launch(
        pod or Pod(namespace="n", name="p", uid="u"),
        Container(name="c", **fields),
        argv=("prog",),
        environment={"A": "1"},
        mounted=MOUNTED,
        paths=PATHS,
        node=NodePaths(hidden=Path("/k")),
    )


def test_plain_container() -> None:
    expected = Launch(
        argv=("prog",), env={"A": "1"}, scratch="/k/scratch", groups=(7000,), binds=(MESSAGE,), hidden=("/k",)
    )
    assert plan() == expected


def test_mounts_are_handed_to_the_node_only_where_it_takes_them() -> None:
    mount = VolumeMount(volume="efs", path="/pods", shares_mounts=True)
    with pytest.raises(InvalidValue, match="Bidirectional"):
        plan(mounts=(mount,))


def test_outer_mounts_come_first() -> None:
    mounts = (
        VolumeMount(volume="efs", path="/a/b/c"),
        VolumeMount(volume="config", path="/a"),
        VolumeMount(volume="efs", path="/a/b", read_only=True),
    )
    assert plan(mounts=mounts).binds == (
        Bind(source="/config", target="/a", read_only=True),
        MESSAGE,
        Bind(source="/efs", target="/a/b", read_only=True),
        Bind(source="/efs", target="/a/b/c"),
    )


def test_a_program_is_seen_under_a_mount_over_its_directory() -> None:
    launch = plan_launch(
        Pod(namespace="n", name="p", uid="u"),
        Container(name="c", mounts=(VolumeMount(volume="efs", path="/tmp"),)),
        argv=("prog",),
        environment={},
        mounted=MOUNTED,
        paths=PATHS,
        node=NodePaths(
            hidden=Path("/k"), image=(Bind(source="/tmp/checkout", target="/tmp/checkout", read_only=True),)
        ),
    )
    assert launch.binds == (
        Bind(source="/efs", target="/tmp"),
        Bind(source="/tmp/checkout", target="/tmp/checkout", read_only=True),
        MESSAGE,
    )


@pytest.mark.parametrize(
    ("own", "common", "ids"),
    [
        pytest.param(Identity(), Identity(), (0, 0), id="nothing said"),
        pytest.param(Identity(), Identity(uid=5, gid=6), (5, 6), id="the pod's"),
        pytest.param(Identity(uid=0), Identity(uid=5, gid=6), (0, 6), id="the container's own, even root"),
    ],
)
def test_identity(own: Identity, common: Identity, ids: tuple[int, int]) -> None:
    found = plan(Pod(namespace="n", name="p", uid="u", identity=common), identity=own)
    assert (found.uid, found.gid) == ids


@pytest.mark.parametrize(
    ("mount", "field", "text"),
    [
        (VolumeMount(volume="none", path="/x"), ".name", "is no volume of the pod"),
        (VolumeMount(volume="efs", path="x"), ".mountPath", "is not an absolute path"),
    ],
    ids=["unknown volume", "relative path"],
)
def test_mounts_that_cannot_be(mount: VolumeMount, field: str, text: str) -> None:
    with pytest.raises(InvalidValue, match=text) as caught:
        plan(mounts=(mount,))
    assert caught.value.field == f"container c, volumeMounts[0]{field}"
