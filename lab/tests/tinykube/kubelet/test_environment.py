from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.errors import InvalidValue, NotYet, TinykubeError
from tinykube.kubelet.environment import (
    expand,
    placeholder,
    resolve_command,
    resolve_environment,
    wanted_stores,
)
from tinykube.kubelet.images import Image
from tinykube.kubelet.pods import Container, EnvVar, KeyReference, Pod, Store

POD = Pod(namespace="team", name="web", uid="u-1", node="n-1")
SETTINGS = (Store.CONFIG_MAP, "settings")


def resolve(container: Container, stores: dict[Any, Any] | None = None) -> dict[str, str]:
    return resolve_environment(container, POD, stores or {})


def reference(**fields: Any) -> KeyReference:
    return KeyReference(**{"store": Store.CONFIG_MAP, "name": "settings", "key": "k", **fields})


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


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "team"),
        ("metadata.uid", "u-1"),
        ("spec.nodeName", "n-1"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    assert resolve(Container(name="c", env=(EnvVar(name="V", field_path=path),)))["V"] == value


def test_own_variables_win_and_see_those_before_them() -> None:
    container = Container(
        name="c",
        env=(
            EnvVar(name="HOME", value="own"),
            EnvVar(name="K", reference=reference()),
            EnvVar(name="V", value="$(HOME)-$(K)-$(LATER)"),
            EnvVar(name="LATER"),
        ),
    )
    found = resolve(container, {SETTINGS: {"k": b"from", "other": b"o"}})
    assert (found["HOME"], found["V"]) == ("own", "own-from-$(LATER)")


def test_optional_reference_that_is_missing_leaves_no_variable() -> None:
    container = Container(name="c", env=(EnvVar(name="V", reference=reference(optional=True)),))
    assert "V" not in resolve(container)


@pytest.mark.parametrize(
    ("var", "stores", "error", "text"),
    [
        pytest.param(
            EnvVar(name="V", reference=reference()), {}, NotYet, 'configmap "settings" not found', id="map"
        ),
        pytest.param(
            EnvVar(name="V", reference=reference()),
            {SETTINGS: {}},
            NotYet,
            "couldn't find key k in ConfigMap team/settings",
            id="key",
        ),
        pytest.param(
            EnvVar(name="V", reference=reference(store=Store.SECRET)),
            {},
            NotYet,
            'secret "settings" not found',
            id="secret",
        ),
        pytest.param(
            EnvVar(name="V", field_path="spec.secrets"),
            {},
            InvalidValue,
            "is not known to this kubelet",
            id="field",
        ),
    ],
)
def test_what_cannot_be_resolved(
    var: EnvVar, stores: dict[Any, Any], error: type[TinykubeError], text: str
) -> None:
    with pytest.raises(error) as caught:
        resolve(Container(name="c", env=(var,)), stores)
    assert caught.value.problem == text


def test_wanted_stores() -> None:
    secret = reference(store=Store.SECRET, name="s")
    variables = (EnvVar(name="A", reference=reference()), EnvVar(name="V", reference=secret))
    container = Container(name="c", env=variables)
    assert wanted_stores(container) == {SETTINGS, (Store.SECRET, "s")}


@pytest.mark.parametrize(
    ("container", "argv"),
    [
        (Container(name="c", command=("a",), args=("$(V)",)), ("a", "1")),
        (Container(name="c", image="worker", args=("x",)), ("prog", "serve", "x")),
        (Container(name="c", image="worker", command=("own",)), ("own",)),
    ],
    ids=["command and arguments", "program of the image", "command wins over the image"],
)
def test_command(container: Container, argv: tuple[str, ...]) -> None:
    images = {"worker": Image(command=("prog", "serve"))}
    assert resolve_command(container, {"V": "1"}, images) == argv


def test_image_without_program() -> None:
    assert resolve_command(Container(name="c", image="nginx", args=("x",)), {}, {}) is None
    argv, message = placeholder("nginx:1")
    assert message == "image nginx:1 is not pulled here; nothing runs in its place"
    assert argv[-1] == message


def test_variables_of_the_node_give_way_to_the_containers_own() -> None:
    container = Container(name="c", env=(EnvVar(name="HERE", value="$(HERE) and $(THERE)"),))
    everywhere = {"HERE": "1", "THERE": "2"}
    found = resolve_environment(container, POD, {}, everywhere=everywhere)
    assert (found["HERE"], found["THERE"]) == ("1 and 2", "2")
