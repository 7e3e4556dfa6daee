"""What the controllers and the kubelet add to lightkube."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import httpx2
import pytest
import yaml
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.models.core_v1 import PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Event

from tinykube.api import ApiServer
from tinykube.client.calls import unless_exists, unless_missing
from tinykube.client.following import Applied, Deleted, Listed, follow
from tinykube.kubelet.events import PodEvents
from tinykube.kubelet.pods import Pod

POD = Pod(namespace="default", name="web", uid="u-1", spec=PodSpec(containers=[]))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[AsyncClient]:
    config = KubeConfig.from_dict(yaml.safe_load(server.kubeconfig())).get()
    assert config is not None
    async with AsyncClient(config) as client:
        yield client


def config_map(name: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"))


async def test_events_that_come_again_are_written_once(client: AsyncClient) -> None:
    async with PodEvents(client, node="node-1") as events:
        for _ in range(3):
            events.warn(POD, "FailedMount", "no such server")
        events.warn(POD, "Failed", "Error: no such program")
    found = {event.reason: event async for event in client.list(Event, namespace="default")}
    assert {reason: (event.type, event.count) for reason, event in found.items()} == {
        "FailedMount": ("Warning", 1),
        "Failed": ("Warning", 1),
    }
    source = found["Failed"].source
    assert source is not None
    assert (source.component, source.host) == ("kubelet", "node-1")


async def test_what_there_is_and_each_change_is_followed(client: AsyncClient) -> None:
    await client.create(config_map("old"))
    async with aclosing(follow(client, ConfigMap, namespace="default")) as changes:
        match await anext(changes):
            case Listed(objects):
                assert "old" in {one.metadata and one.metadata.name for one in objects}
            case other:
                pytest.fail(str(other))
        await client.create(config_map("new"))
        assert isinstance(await anext(changes), Applied)
        await client.delete(ConfigMap, "old", namespace="default")
        assert isinstance(await anext(changes), Deleted)


async def test_a_watch_that_fails_begins_with_a_list_again(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise httpx2.ReadError("the server is away")

    async with aclosing(follow(client, ConfigMap, namespace="default")) as changes:
        assert isinstance(await anext(changes), Listed)
        monkeypatch.setattr(client, "watch", broken)
        assert isinstance(await anext(changes), Listed)


async def test_ordinary_refusals_give_nothing_and_others_are_raised(client: AsyncClient) -> None:
    assert await unless_missing(client.get(ConfigMap, "gone", namespace="default")) is None
    assert await unless_exists(client.create(config_map("one")))
    assert await unless_exists(client.create(config_map("one"))) is None
    with pytest.raises(ApiError):
        await unless_missing(client.create(config_map("one")))
