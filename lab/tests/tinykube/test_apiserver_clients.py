"""The embedded API server as lightkube and kopf, the clients of kube-efs itself, see it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import kopf
import pytest
import yaml
from lightkube import AsyncClient, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.core_v1 import (
    NFSVolumeSource,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    VolumeResourceRequirements,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret
from lightkube.types import CascadeType, PatchType

from tinykube.api import ApiServer

DEADLINE_SECONDS = 60.0
Definition = create_global_resource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"
)
Widget = create_namespaced_resource("example.com", "v1", "Widget", "widgets")
DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as started:
        yield started


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[AsyncClient]:
    config = KubeConfig.from_dict(yaml.safe_load(server.kubeconfig()))
    async with AsyncClient(config=config, namespace="default", field_manager="tests", trust_env=False) as one:
        yield one


def config_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name), data=data)


def claim(name: str) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name=name),
        spec=PersistentVolumeClaimSpec(
            accessModes=["ReadWriteMany"],
            resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
        ),
    )


def volume(name: str) -> PersistentVolume:
    return PersistentVolume(
        metadata=ObjectMeta(name=name),
        spec=PersistentVolumeSpec(
            accessModes=["ReadWriteMany"],
            capacity={"storage": "1Gi"},
            nfs=NFSVolumeSource(server="127.0.0.1", path="/"),
        ),
    )


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - conditions are on plain lists
            await asyncio.sleep(0.02)


async def test_an_object_is_created_read_replaced_and_deleted(client: AsyncClient) -> None:
    created = await client.create(config_map("settings", colour="red"))
    assert created.metadata is not None
    assert created.metadata.uid
    created.data = {"colour": "blue"}
    replaced = await client.replace(created)
    read = await client.get(ConfigMap, "settings")
    assert read.data == {"colour": "blue"}
    assert read.metadata is not None
    assert replaced.metadata is not None
    assert read.metadata.resourceVersion == replaced.metadata.resourceVersion
    await client.delete(ConfigMap, "settings")
    with pytest.raises(ApiError) as refusal:
        await client.get(ConfigMap, "settings")
    assert refusal.value.status.code == 404
    assert refusal.value.status.message == 'configmaps "settings" not found'


async def test_a_replacement_of_an_old_version_is_refused(client: AsyncClient) -> None:
    stale = await client.create(config_map("settings", colour="red"))
    fresh = await client.get(ConfigMap, "settings")
    fresh.data = {"colour": "blue"}
    await client.replace(fresh)
    stale.data = {"colour": "green"}
    with pytest.raises(ApiError) as refusal:
        await client.replace(stale)
    assert refusal.value.status.reason == "Conflict"
    assert refusal.value.status.message == (
        'Operation cannot be fulfilled on configmaps "settings": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


@pytest.mark.parametrize(
    ("patch_type", "patch", "expected"),
    [
        pytest.param(PatchType.MERGE, {"data": {"a": None, "c": "3"}}, {"b": "2", "c": "3"}, id="merge"),
        pytest.param(
            PatchType.JSON, [{"op": "remove", "path": "/data/b"}], {"a": "1"}, id="list of operations"
        ),
        pytest.param(PatchType.STRATEGIC, {"data": {"b": "4"}}, {"a": "1", "b": "4"}, id="strategic merge"),
    ],
)
async def test_an_object_is_patched(
    client: AsyncClient, patch_type: PatchType, patch: Any, expected: dict[str, str]
) -> None:
    await client.create(config_map("settings", a="1", b="2"))
    patched = await client.patch(ConfigMap, "settings", patch, patch_type=patch_type)
    assert patched.data == expected


async def test_two_appliers_own_their_fields(client: AsyncClient) -> None:
    await client.apply(config_map("settings", a="1"), field_manager="first")
    merged = await client.apply(config_map("settings", b="2"), field_manager="second")
    assert merged.data == {"a": "1", "b": "2"}
    forced = await client.apply(config_map("settings", a="9"), field_manager="second", force=True)
    assert forced.data == {"a": "9"}, "second no longer applies b, and first no longer owns a"


async def test_secrets_are_stored_encoded(client: AsyncClient) -> None:
    await client.create(Secret(metadata=ObjectMeta(name="key"), stringData={"password": "x"}))
    assert (await client.get(Secret, "key")).data == {"password": "eA=="}


async def test_lists_are_selected_and_paged(client: AsyncClient) -> None:
    for number in range(5):
        labels = {"parity": "even" if number % 2 == 0 else "odd"}
        await client.create(ConfigMap(metadata=ObjectMeta(name=f"n{number}", labels=labels)))

    async def names(**query: Any) -> list[str]:
        found = client.list(ConfigMap, **query)
        return [one.metadata.name async for one in found if one.metadata and one.metadata.name]

    assert await names(labels={"parity": "even"}) == ["n0", "n2", "n4"]
    assert await names(fields={"metadata.name": "n3"}) == ["n3"]
    assert await names(chunk_size=2) == [f"n{number}" for number in range(5)]


async def test_a_claim_waits_for_its_protection_to_be_lifted(client: AsyncClient) -> None:
    await client.create(claim("data"))
    await client.delete(PersistentVolumeClaim, "data")
    held = await client.get(PersistentVolumeClaim, "data")
    assert held.metadata is not None
    assert held.metadata.deletionTimestamp is not None
    assert held.metadata.finalizers == ["kubernetes.io/pvc-protection"]
    await client.patch(PersistentVolumeClaim, "data", {"metadata": {"finalizers": None}})
    with pytest.raises(ApiError) as refusal:
        await client.get(PersistentVolumeClaim, "data")
    assert refusal.value.status.code == 404


async def test_the_status_of_a_volume_is_written_apart_from_its_spec(client: AsyncClient) -> None:
    await client.create(volume("v1"))
    patch = {"status": {"phase": "Available"}, "spec": {"storageClassName": "other"}}
    await client.patch(PersistentVolume.Status, "v1", patch)
    found = await client.get(PersistentVolume, "v1")
    assert found.status is not None
    assert found.status.phase == "Available"
    assert found.spec is not None
    assert found.spec.storageClassName is None


async def test_what_a_volume_leads_to_cannot_be_changed(client: AsyncClient) -> None:
    await client.create(volume("v1"))
    with pytest.raises(ApiError) as refusal:
        await client.patch(PersistentVolume, "v1", {"spec": {"nfs": {"path": "/elsewhere"}}})
    assert refusal.value.status.code == 422
    assert refusal.value.status.message is not None
    assert "spec.persistentvolumesource: is immutable" in refusal.value.status.message


async def test_a_watch_tells_every_change_in_order(client: AsyncClient) -> None:
    seen: list[tuple[str, str]] = []

    async def watch() -> None:
        async for kind, found in client.watch(ConfigMap):
            assert found.metadata is not None
            seen.append((str(kind), (found.data or {}).get("colour", "")))
            if kind == "DELETED":
                return

    await client.create(config_map("settings", colour="red"))
    watching = asyncio.create_task(watch())
    await eventually(lambda: len(seen) == 1)
    await client.patch(ConfigMap, "settings", {"data": {"colour": "blue"}})
    await client.delete(ConfigMap, "settings")
    async with asyncio.timeout(DEADLINE_SECONDS):
        await watching
    assert seen == [("ADDED", "red"), ("MODIFIED", "blue"), ("DELETED", "blue")]


async def test_a_watch_from_a_forgotten_version_is_expired(server: ApiServer, client: AsyncClient) -> None:
    created = await client.create(config_map("settings", colour="red"))
    assert created.metadata is not None
    await client.patch(ConfigMap, "settings", {"data": {"colour": "blue"}})
    server.compact()
    with pytest.raises(ApiError) as refusal:
        async for _ in client.watch(ConfigMap, resource_version=created.metadata.resourceVersion):
            pass
    assert refusal.value.status.code == 410
    assert refusal.value.status.reason == "Expired"


async def test_the_server_stops_while_watched() -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        server = ApiServer()
        await server.start()
        config = KubeConfig.from_dict(yaml.safe_load(server.kubeconfig()))
        async with AsyncClient(config=config, namespace="default", trust_env=False) as client:
            await client.create(config_map("settings"))
            events = client.watch(ConfigMap)
            await anext(aiter(events))
            await server.stop()


async def test_a_custom_resource_lives_as_long_as_its_definition(client: AsyncClient) -> None:
    await client.create(Definition.from_dict(DEFINITION))
    await client.create(Widget(metadata=ObjectMeta(name="one"), spec={"size": 1}))
    await client.patch(Widget.Status, "one", {"status": {"ready": True}}, patch_type=PatchType.MERGE)
    found = await client.get(Widget, "one")
    assert found["status"] == {"ready": True}
    assert found["metadata"]["generation"] == 1, "a status is no new generation"
    await client.delete(Definition, "widgets.example.com", cascade=CascadeType.BACKGROUND)
    with pytest.raises(ApiError) as refusal:
        await client.get(Definition, "widgets.example.com")
    assert refusal.value.status.code == 404
    with pytest.raises(httpx2.HTTPStatusError, match="404"):
        await client.get(Widget, "one")


@asynccontextmanager
async def operator(registry: kopf.OperatorRegistry, server: ApiServer, folder: Path) -> AsyncIterator[None]:
    """A kopf operator in this process, watching all namespaces."""
    path = folder / "kubeconfig"
    server.write_kubeconfig(path)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        ca = folder / "ca.pem"
        ca.write_bytes(server.ca_pem)
        return kopf.ConnectionInfo(server=server.url, ca_path=str(ca), scheme="Bearer", token=server.token)

    ready, stop = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(
        kopf.operator(
            registry=registry,
            standalone=True,
            clusterwide=True,
            ready_flag=ready,
            stop_flag=stop,
        )
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        await ready.wait()
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await running


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
async def test_an_operator_sees_claims_and_custom_resources(
    server: ApiServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.create(Definition.from_dict(DEFINITION))
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.event("", "v1", "persistentvolumeclaims", registry=registry)
    async def on_claim(type: str | None, name: str | None, **_: Any) -> None:  # noqa: A002 - kopf's name
        seen.append((type, name))

    @kopf.on.create("example.com", "v1", "widgets", registry=registry)
    async def on_widget(patch: kopf.Patch, spec: kopf.Spec, **_: Any) -> None:
        patch.status["double"] = spec["size"] * 2

    await client.create(claim("early"))
    async with operator(registry, server, tmp_path):
        await eventually(lambda: (None, "early") in seen)
        await client.create(claim("late"))
        await client.create(Widget(metadata=ObjectMeta(name="one"), spec={"size": 21}))
        await eventually(lambda: ("ADDED", "late") in seen)
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for _, widget in client.watch(Widget):
                if dict(widget).get("status") == {"double": 42}:
                    break


async def test_a_server_that_pauses_goes_on_at_its_address_with_what_it_has(
    api_server: ApiServer, kube: AsyncClient
) -> None:
    await kube.create(ConfigMap(metadata=ObjectMeta(name="kept", namespace="default"), data={"a": "b"}))
    await api_server.pause()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(api_server.host, api_server.port)

    await api_server.start()

    async with asyncio.timeout(DEADLINE_SECONDS):
        found = await kube.get(ConfigMap, "kept", namespace="default")
    assert found.data == {"a": "b"}
