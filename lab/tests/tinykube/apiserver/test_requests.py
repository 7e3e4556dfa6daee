"""What a request says: its path, the formats it wants and sends, its body."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.tests.tinykube.apiserver.inside import refused

from tinykube.api.protobuf_bodies import PROTOBUF
from tinykube.api.requests import (
    Parameters,
    Patch,
    PatchType,
    ResourcePath,
    check_patch_options,
    parse_delete_options,
    parse_dry_run,
    parse_object,
    parse_patch,
    parse_resource_path,
    wants_table,
)
from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.statuses import ApiError

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/pods", ResourcePath(group="", version="v1", resource="pods")),
        ("/api/v1/nodes/n1", ResourcePath(group="", version="v1", resource="nodes", name="n1")),
        (
            "/api/v1/namespaces/a/pods/p/log",
            ResourcePath(group="", version="v1", resource="pods", namespace="a", name="p", subresource="log"),
        ),
        ("/api/v1/namespaces/a", ResourcePath(group="", version="v1", resource="namespaces", name="a")),
        (
            "/api/v1/namespaces/a/finalize",
            ResourcePath(group="", version="v1", resource="namespaces", name="a", subresource="finalize"),
        ),
        (
            "/apis/example.com/v1/namespaces/a/widgets/x%3Ay",
            ResourcePath(group="example.com", version="v1", resource="widgets", namespace="a", name="x:y"),
        ),
        ("/apis/apps/v1", None),
        ("/api/v1", None),
        ("/version", None),
        ("/", None),
        ("/api/v1/namespaces/a/pods/p/log/more", None),
    ],
    ids=str,
)
def test_paths_name_resources(path: str, expected: ResourcePath | None) -> None:
    assert parse_resource_path(path) == expected


@given(st.text())
def test_no_path_is_a_surprise(path: str) -> None:
    found = parse_resource_path(path)
    assert found is None or found.resource


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", False),
        (f"{TABLE},application/json", True),
        (f"application/json,{TABLE}", False),
        ("application/vnd.kubernetes.protobuf,application/json", False),
        (f"{METADATA},application/json", False),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", False),
    ],
)
def test_the_first_acceptable_form_wins(accept: str, expected: bool) -> None:
    assert wants_table(accept) is expected


def test_protocol_buffers_alone_are_not_answered() -> None:
    with refused(406, "application/json only"):
        wants_table("application/vnd.kubernetes.protobuf")


def test_bodies_are_json() -> None:
    assert parse_object(b'{"a": 1}', "application/json; charset=utf-8") == {"a": 1}
    for media_type in ("text/plain", "application/yaml"):
        with refused(415, "the body must be one of"):
            parse_object(b"{}", media_type)
    for content in (b"{", b"[]", b"1"):
        with refused(400, ""):
            parse_object(content, "application/json")


def test_patches_are_distinguished_by_their_media_type() -> None:
    assert parse_patch(b"[]", PatchType.JSON, custom=True) == Patch(type=PatchType.JSON, content=[])
    assert parse_patch(b'{"a": 1}', PatchType.APPLY, custom=True).content == {"a": 1}
    assert parse_patch(b"{}", PatchType.STRATEGIC, custom=False).type is PatchType.STRATEGIC
    with refused(415, "application/merge-patch+json"):
        parse_patch(b"{}", PatchType.STRATEGIC, custom=True)
    with refused(415, "application/strategic-merge-patch+json"):
        parse_patch(b"{}", "application/json", custom=False)


def test_applying_needs_a_manager_and_only_applying_can_be_forced() -> None:
    with refused(422, "fieldManager: is required"):
        check_patch_options(Patch(type=PatchType.APPLY, content={}), Parameters({}))
    with refused(422, "force: is for apply patches only"):
        check_patch_options(Patch(type=PatchType.MERGE, content={}), Parameters({"force": "true"}))


@pytest.mark.parametrize(
    ("content", "query", "expected"),
    [
        pytest.param({}, {}, DeleteOptions(), id="nothing said"),
        pytest.param(
            {"propagationPolicy": "Foreground", "gracePeriodSeconds": 0, "preconditions": {"uid": "u"}},
            {},
            DeleteOptions(propagation="Foreground", grace_period_seconds=0, uid="u"),
            id="in the body",
        ),
        pytest.param(
            None,
            {"gracePeriodSeconds": "5", "propagationPolicy": "Orphan"},
            DeleteOptions(propagation="Orphan", grace_period_seconds=5),
            id="in the query",
        ),
        pytest.param({"dryRun": ["All"]}, {}, DeleteOptions(dry_run=True), id="a dry run"),
    ],
)
def test_options_of_a_deletion(
    content: dict[str, object] | None, query: dict[str, str], expected: DeleteOptions
) -> None:
    encoded = b"" if content is None else json.dumps(content).encode()
    assert parse_delete_options(encoded, "application/json", Parameters(query)) == expected


def test_unknown_options_are_refused() -> None:
    with refused(422, "propagationPolicy: must be"):
        parse_delete_options(b'{"propagationPolicy": "Sideways"}', "application/json", Parameters({}))
    with refused(422, "dryRun: must be All"):
        parse_dry_run(Parameters({"dryRun": "Some"}))


# What `kubectl create configmap settings --from-literal=colour=red` (1.32) sends.
CONFIG_MAP = base64.b64decode(
    "azhzAAoPCgJ2MRIJQ29uZmlnTWFwEikKGAoIc2V0dGluZ3MSABoAIgAqADIAOABCABINCgZjb2xvdXISA3JlZBoAIgA="
)


def test_what_kubectl_creates_is_read_from_protocol_buffers() -> None:
    assert parse_object(CONFIG_MAP, PROTOBUF) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings"},
        "data": {"colour": "red"},
    }


def test_kinds_that_are_not_read_from_protocol_buffers_are_named() -> None:
    with refused(415, "objects of kind Ingress are not understood"):
        parse_object(b"k8s\x00\x0a\x12\x0a\x07apps/v1\x12\x07Ingress\x12\x00", PROTOBUF)


@given(st.binary(max_size=60))
def test_no_protocol_buffers_are_a_surprise(content: bytes) -> None:
    for body in (content, b"k8s\x00" + content, CONFIG_MAP[: len(content)]):
        try:
            parse_object(body, PROTOBUF)
        except ApiError as error:
            assert error.code in {400, 415}  # noqa: PT017 - most bodies are refused, and some are not
