"""What a container runs and sees."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube import AsyncClient
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Secret
from msgspec import convert

from tinykube.errors import InvalidValue, NotYet, TinykubeError
from tinykube.kubelet.containers import (
    ContainerFiles,
    Image,
    expand,
    find_image,
    placeholder,
    plan_launch,
    repository,
    resolve_command,
    resolve_environment,
)
from tinykube.kubelet.launch import Bind, Launch
from tinykube.kubelet.pods import Pod
from tinykube.kubelet.volumes import Mounted

OURS, OTHER = Image(command=("ours",)), Image(command=("other",))
IMAGES = {"quay.io/ours/ours": OURS, "registry:5000/other:1": OTHER}
MESSAGE = Bind(source="/k/c/termination-message", target="/dev/termination-log")
MOUNTED = {
    "efs": Mounted(path=Path("/efs"), groups=(7000,)),
    "config": Mounted(path=Path("/config"), read_only=True),
}


def pod(**spec: Any) -> Pod:
    return Pod(
        namespace="default",
        name="web",
        uid="u-1",
        spec=convert({"containers": [], "nodeName": "n-1", **spec}, PodSpec),
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("quay.io/ours/ours:0.2.0", OURS, id="any version"),
        pytest.param(f"quay.io/ours/ours@sha256:{64 * 'a'}", OURS, id="by digest"),
        pytest.param("quay.io/ours/ours", OURS, id="no version"),
        pytest.param("registry:5000/other:1", OTHER, id="just this version"),
        pytest.param("registry:5000/other:2", None, id="another version than the one there is"),
        pytest.param("quay.io/ours/ourselves:0.2.0", None, id="another name"),
    ],
)
def test_an_image_is_found_by_name_and_version(name: str, found: Image | None) -> None:
    assert find_image(IMAGES, name) is found


def test_a_port_is_no_version() -> None:
    assert repository("registry:5000/other") == "registry:5000/other"


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        pytest.param("$(A)", "1", id="known"),
        pytest.param("x$(A)y$(B)", "x1y2", id="two"),
        pytest.param("$(NOT)", "$(NOT)", id="unknown stays"),
        pytest.param("$$(A)", "$(A)", id="escaped"),
        pytest.param("$$$(A)", "$1", id="escaped dollar before a reference"),
        pytest.param("$A ${A} $", "$A ${A} $", id="shell syntax is no syntax"),
        pytest.param("$(A", "$(A", id="not closed"),
    ],
)
def test_expand(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


@given(st.text())
def test_text_without_a_dollar_is_left_alone(text: str) -> None:
    plain = text.replace("$", "")
    assert expand(plain, {"A": "1"}) == plain


def key_of(kind: str, key: str = "k", *, optional: bool = False) -> Mapping[str, Any]:
    return {f"{kind}KeyRef": {"name": "settings", "key": key, "optional": optional}}


async def resolve(kube: AsyncClient, *env: Mapping[str, Any]) -> Mapping[str, str]:
    container = convert({"name": "c", "env": list(env)}, Container)
    return await resolve_environment(kube, pod(), container, {"HERE": "1", "THERE": "2"})


async def test_variables_come_from_everywhere_and_see_those_before_them(kube: AsyncClient) -> None:
    meta = ObjectMeta(name="settings", namespace="default")
    await kube.create(ConfigMap(metadata=meta, data={"k": "map"}))
    await kube.create(Secret(metadata=meta, data={"k": "c2VjcmV0"}))
    found = await resolve(
        kube,
        {"name": "HERE", "value": "own"},
        {"name": "MAP", "valueFrom": key_of("configMap")},
        {"name": "SECRET", "valueFrom": key_of("secret")},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "NONE", "valueFrom": key_of("configMap", "none", optional=True)},
        {"name": "ALL", "value": "$(HERE) $(THERE) $(MAP) $(SECRET) $(NODE) $(NONE) $(LATER)"},
        {"name": "LATER"},
    )
    assert found["ALL"] == "own 2 map secret n-1 $(NONE) $(LATER)"
    assert "NONE" not in found


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        pytest.param(
            key_of("configMap"), NotYet, "couldn't find key k in ConfigMap default/settings", id="map"
        ),
        pytest.param(key_of("secret"), NotYet, "couldn't find key k in Secret default/settings", id="secret"),
        pytest.param(
            {"fieldRef": {"fieldPath": "spec.secrets"}},
            InvalidValue,
            "is not known to this kubelet",
            id="field",
        ),
    ],
)
async def test_what_cannot_be_resolved(
    kube: AsyncClient, source: Mapping[str, Any], error: type[TinykubeError], text: str
) -> None:
    with pytest.raises(error) as caught:
        await resolve(kube, {"name": "V", "valueFrom": source})
    assert caught.value.problem == text


@pytest.mark.parametrize(
    ("container", "image", "argv"),
    [
        (Container(name="c", command=["a"], args=["$(V)"]), None, ("a", "1")),
        (Container(name="c", args=["x"]), OURS, ("ours", "x")),
        (Container(name="c", command=["own"]), OURS, ("own",)),
        (Container(name="c", args=["x"]), None, ()),
    ],
    ids=["command and arguments", "program of the image", "command wins over the image", "nobody knows"],
)
def test_command(container: Container, image: Image | None, argv: tuple[str, ...]) -> None:
    assert resolve_command(container, {"V": "1"}, image) == argv


def test_placeholder_says_what_it_is() -> None:
    argv, message = placeholder("nginx:1")
    assert message == "image nginx:1 is not pulled here; nothing runs in its place"
    assert argv[-1] == message


def plan(
    *mounts: Mapping[str, Any], own: Any = None, common: Any = None, image: Image | None = None
) -> Launch:
    container = {"name": "c", "volumeMounts": list(mounts), "securityContext": own or {}}
    return plan_launch(
        pod(securityContext=common or {}),
        convert(container, Container),
        ContainerFiles(Path("/k"), Path("/k/c")),
        argv=("prog",),
        environment={"A": "1"},
        mounted=MOUNTED,
        image=image,
    )


def test_plain_container() -> None:
    assert plan() == Launch(
        argv=("prog",), env={"A": "1"}, scratch="/k/c/scratch", groups=(7000,), binds=(MESSAGE,), hidden="/k"
    )


def test_outer_mounts_come_first() -> None:
    found = plan(
        {"name": "efs", "mountPath": "/a/b/c"},
        {"name": "config", "mountPath": "/a"},
        {"name": "efs", "mountPath": "/a/b", "readOnly": True, "mountPropagation": "Bidirectional"},
    )
    assert found.binds == (
        Bind(source="/config", target="/a", read_only=True),
        MESSAGE,
        Bind(source="/efs", target="/a/b", read_only=True, shares_mounts=True),
        Bind(source="/efs", target="/a/b/c"),
    )


def test_a_program_is_seen_under_a_mount_over_its_directory() -> None:
    files = (Bind(source="/tmp/checkout", target="/tmp/checkout", read_only=True),)
    found = plan({"name": "efs", "mountPath": "/tmp"}, image=Image(command=("prog",), files=files))
    assert found.binds == (Bind(source="/efs", target="/tmp"), *files, MESSAGE)


@pytest.mark.parametrize(
    ("own", "common", "ids"),
    [
        pytest.param({}, {}, (0, 0), id="nothing said"),
        pytest.param({}, {"runAsUser": 5, "runAsGroup": 6}, (5, 6), id="the pod's"),
        pytest.param(
            {"runAsUser": 0}, {"runAsUser": 5, "runAsGroup": 6}, (0, 6), id="the container's own, even root"
        ),
    ],
)
def test_identity(own: Mapping[str, int], common: Mapping[str, int], ids: tuple[int, int]) -> None:
    found = plan(own=own, common=common)
    assert (found.uid, found.gid) == ids


def test_mount_of_no_volume() -> None:
    with pytest.raises(InvalidValue, match="'none' is not a volume of the pod"):
        plan({"name": "none", "mountPath": "/a"})
