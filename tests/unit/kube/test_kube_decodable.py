"""Objects with values that Python does not have, as text and for every reader of objects of tenants."""

import asyncio
import gzip
import importlib
import json
import pkgutil
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final, cast

import httpx2
import msgspec
import pytest
from lightkube import AsyncClient, models
from lightkube.codecs import load_all_yaml
from lightkube.config.kubeconfig import SingleConfig
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod
from lightkube.types import PatchType
from tests.unit.kube.shared_volume_definition import define

from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.cluster import gather_cluster
from kube_efs.kube import client as client_module
from kube_efs.kube.answers import DecodableTransport
from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.client import connect
from kube_efs.kube.connections import Connections
from kube_efs.kube.decodable import decodable
from kube_efs.kube.shared_volume_store import SharedVolumeStore
from kube_efs.kube.shared_volumes import SharedVolumeResource
from kube_efs.kube.watching import Applied, Listed, follow
from kube_efs.migration.cluster import MigrationStore
from kube_efs.model.errors import KubeUnavailable
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.model.shared_volumes.shared_volume import Owner
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.volumes_in_use import find_volume_uses
from kube_efs.report.reading import read_cluster

FIRST: Final = "0001-01-01T00:00:00Z"
LAST: Final = "9999-12-31T23:59:59Z"
DEEP: Final = b'{"f:a":' * 9000 + b"{}" + b"}" * 9000
# As the API server stores them.
ENTRY: Final = b'{"manager":"m\\"]","time":"0000-01-01T00:00:00Z","fieldsV1":%s}' % DEEP


@pytest.mark.parametrize(
    ("time", "read"),
    [
        pytest.param("0000-12-31T23:59:59Z", FIRST, id="the year 0"),
        pytest.param("-0001-12-31T14:00:00Z", FIRST, id="before it"),
        pytest.param("-292277022399-01-01T00:00:00Z", FIRST, id="long before it"),
        pytest.param("10000-01-01T09:59:59Z", LAST, id="the year 10000"),
        pytest.param("292277026596-12-04T15:30:07.123456Z", LAST, id="long after it"),
        pytest.param(FIRST, FIRST, id="the first time"),
        pytest.param(LAST, LAST, id="the last time"),
        pytest.param("2026-11-30T13:13:06.000001Z", "2026-11-30T13:13:06.000001Z", id="a usual time"),
    ],
)
@pytest.mark.parametrize("space", ["", " "])
def test_times_that_python_does_not_have_become_the_nearest_ones(time: str, read: str, space: str) -> None:
    content = json.dumps({"lastTimestamp": time}, separators=(",", ":" + space)).encode()
    assert json.loads(decodable(content)) == {"lastTimestamp": read}
    msgspec.json.decode(decodable(content), type=dict[str, datetime])


def test_every_field_with_a_time_is_known() -> None:
    names = set()
    for module in pkgutil.iter_modules(models.__path__):
        found = importlib.import_module(f"lightkube.models.{module.name}")
        for kind in vars(found).values():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                hints = kind.__annotations__.items()
                names |= {name for name, hint in hints if re.search(r"\b(Micro)?Time\b", str(hint))}
    assert {"creationTimestamp", "startedAt", "timeAdded"} < names
    for name in names:
        content = json.dumps({name: "0000-01-01T00:00:00Z"}).encode()
        assert json.loads(decodable(content)) == {name: FIRST}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"annotations": {"example.com/startTime": "0000-01-01T00:00:00Z"}}, id="an annotation"),
        pytest.param({"note": '"time":"0000-01-01T00:00:00Z"'}, id="a time in a text"),
        pytest.param({"note": '{"managedFields":[{"manager":"m"}]}'}, id="managed fields in a text"),
        pytest.param({"note": '\\"managedFields\\":[\\\\'}, id="backslashes"),
        pytest.param({"f:managedFields": [1]}, id="another name"),
        pytest.param({'a"managedFields': ["x"], 'a"time': "0000-01-01T00:00:00Z"}, id="quotes in names"),
    ],
)
def test_other_values_stay(value: dict[str, Any]) -> None:
    assert json.loads(decodable(json.dumps(value, separators=(",", ":")).encode())) == value


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(b"", id="none"),
        pytest.param(ENTRY, id="nested thousands of levels deep"),
        pytest.param(ENTRY + b"," + ENTRY, id="several"),
        pytest.param(b'{"manager":"]}\\\\\\"]","fieldsV1":{"v:\\"]\\"":{}}}', id="brackets in texts"),
        pytest.param(b'{"fieldsV1":[[],[[{"a":[]}]]]}', id="lists in lists"),
        pytest.param(b'{"fieldsV1":{%s}}' % b",".join([b'"f:]":{"[":[1]}'] * 5000), id="thousands of names"),
        pytest.param(b'{"fieldsV1":{"managedFields":[[]]}}', id="managed fields in them"),
    ],
)
def test_managed_fields_become_empty(entries: bytes) -> None:
    one = b'{"metadata":{"managedFields":[%s],"name":"a"},"spec":["]"]}' % entries
    read = {"metadata": {"managedFields": [], "name": "a"}, "spec": ["]"]}
    assert json.loads(decodable(b"[%s, %s]" % (one, one))) == [read, read]


def test_text_that_is_cut_off_stays_cut_off() -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(decodable(b'{"metadata":{"managedFields":[{"manager":"m'))


class Served(httpx2.AsyncBaseTransport):
    """Answers with these pieces."""

    def __init__(self, *pieces: bytes, **headers: str) -> None:
        self._pieces = pieces
        self._headers = {"Content-Type": "application/json", **headers}
        self.accepted = ""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.accepted = request.headers["Accept-Encoding"]

        async def body() -> AsyncIterator[bytes]:
            for piece in self._pieces:
                yield piece

        return httpx2.Response(200, headers=self._headers, content=body())


async def answer(served: Served, path: str = "/api/v1/pods") -> bytes:
    async with httpx2.AsyncClient(transport=DecodableTransport(served), base_url="http://x") as client:
        return (await client.get(path)).content


OBJECT: Final = b'{"metadata":{"managedFields":[{"time":"0000-01-01T00:00:00Z"}]}}'
CLEAN: Final = b'{"metadata":{"managedFields":[]}}'


async def test_whole_answers_are_made_decodable() -> None:
    served = Served(OBJECT[:30], OBJECT[30:])
    assert await answer(served) == CLEAN
    assert served.accepted == "gzip"


async def test_compressed_answer_is_made_decodable() -> None:
    assert await answer(Served(gzip.compress(OBJECT), **{"Content-Encoding": "gzip"})) == CLEAN


class Pages:
    """An API server with objects of these sizes, and the limits that it was asked for."""

    def __init__(self, sizes: Sequence[int], *, compressed: bool) -> None:
        self.sizes, self.compressed = sizes, compressed
        self.limits: list[int] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        limit, first = int(request.url.params["limit"]), int(request.url.params.get("continue", 0))
        self.limits.append(limit)
        after = min(first + limit, len(self.sizes))
        items = [
            {"metadata": {"name": str(one), "text": "<" * self.sizes[one]}} for one in range(first, after)
        ]
        rest = {"continue": str(after)} if after < len(self.sizes) else {}
        body = json.dumps({"metadata": {"resourceVersion": "1"} | rest, "items": items}).encode()
        headers = {"Content-Type": "application/json"}
        if self.compressed:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        return httpx2.Response(200, headers=headers, content=body)


async def read_pages(pages: Pages, *, page_bytes: int, limit: int) -> tuple[list[str], int]:
    """The names of all objects, and the most bytes of a page."""
    transport = DecodableTransport(httpx2.MockTransport(pages), page_bytes=page_bytes)
    names, most, token = [], 0, ""
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        while True:
            given = {"limit": str(limit)} | ({"continue": token} if token else {})
            content = (await client.get("/api/v1/persistentvolumeclaims", params=given)).content
            most, page = max(most, len(content)), json.loads(content)
            names += [one["metadata"]["name"] for one in page["items"]]
            token = page["metadata"].get("continue", "")
            if not token:
                return names, most


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([10] * 100 + [3000] * 60 + [10] * 100, id="large ones between small ones"),
        pytest.param([3000, 10, 10, 10] * 60, id="large ones among small ones"),
        pytest.param([10, 50_000, 10], id="one that is larger than a page"),
    ],
)
async def test_page_with_too_many_bytes_gets_fewer_objects(sizes: Sequence[int], compressed: bool) -> None:
    pages = Pages(sizes, compressed=compressed)
    names, most = await read_pages(pages, page_bytes=20_000, limit=50)
    assert names == [str(number) for number in range(len(sizes))]
    assert most <= max(20_000, max(sizes) + 1000)


async def test_pages_are_as_large_as_requested_again_after_large_objects() -> None:
    pages = Pages([3000] * 20 + [10] * 1000, compressed=False)
    await read_pages(pages, page_bytes=20_000, limit=50)
    assert pages.limits[0] == 50
    assert pages.limits[-10:] == [50] * 10
    # Twenty large objects and a thousand small ones would need 21 pages at least.
    assert len(pages.limits) < 50


async def test_damaged_compression_is_an_error_of_the_client() -> None:
    with pytest.raises(httpx2.DecodingError):
        await answer(Served(b"no gzip", **{"Content-Encoding": "gzip"}))
    with pytest.raises(httpx2.DecodingError, match="cut off"):
        await answer(Served(gzip.compress(OBJECT)[:-9], **{"Content-Encoding": "gzip"}))


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
async def test_each_event_of_a_watch_is_made_decodable(size: int) -> None:
    text = OBJECT + b"\n" + OBJECT + b"\n\n" + OBJECT
    served = Served(*(text[at : at + size] for at in range(0, len(text), size)))
    expected = CLEAN + b"\n" + CLEAN + b"\n\n" + CLEAN
    assert await answer(served, "/api/v1/pods?watch=true") == expected
    assert served.accepted == "identity"


async def test_logs_stay_as_they_are() -> None:
    assert await answer(Served(OBJECT, **{"Content-Type": "text/plain"})) == OBJECT


async def test_operator_reads_the_managed_fields_of_its_workloads() -> None:
    read = OBJECT.replace(b"0000", b"0001")
    assert await answer(Served(OBJECT), "/apis/apps/v1/namespaces/kube-efs/deployments") == read
    assert await answer(Served(OBJECT), "/apis/apps/v1/deployments") == CLEAN


class Hostile(Connections):
    """A connection to an API server whose objects have every value that a tenant can write."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        body = cast("httpx2.AsyncByteStream", response.stream)

        class Changed(httpx2.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for chunk in body:
                    changed = chunk.replace(b'"metadata":{"', b'"metadata":{"managedFields":[%s],"' % ENTRY)
                    yield re.sub(rb'("lastTimestamp":)"[^"]*"', rb'\1"10000-01-01T00:00:00Z"', changed)

            async def aclose(self) -> None:
                await body.aclose()

        if request.method == "GET":
            response.stream = Changed()
        return response


OBJECTS: Final = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
spec:
  accessModes: [ReadWriteMany]
  volumeName: pv
  storageClassName: a
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 1Gi}
  csi: {driver: efs.csi.aws.com, volumeHandle: "fs-0123456789abcdef0"}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default}
spec:
  nodeName: one
  containers: [{name: main, image: main}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Event
metadata: {name: first, namespace: default}
involvedObject: {kind: PersistentVolumeClaim, name: data, namespace: default, uid: "7"}
source: {component: kube-efs-controller}
type: Warning
reason: ProvisioningFailed
message: first
lastTimestamp: "2026-01-01T00:00:00Z"
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: main}]}
---
apiVersion: aws-efs.managed.openshift.io/v1alpha1
kind: SharedVolume
metadata: {name: shared, namespace: default}
spec: {fileSystemID: fs-0123456789abcdef0, accessPointID: fsap-0123456789abcdef0}
"""


@pytest.fixture
async def hostile(
    kube: AsyncClient, cluster: SingleConfig, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncClient]:
    await define(kube)
    for one in load_all_yaml(OBJECTS):
        await kube.create(one)
    monkeypatch.setattr(client_module, "Connections", Hostile)
    async with connect(cluster) as client:
        yield client


async def claims(client: AsyncClient) -> object:
    store = ClaimStore(client)
    found = await store.get("default", "data")
    return [one.name for one in await store.list()] == ["data"] and found and not await store.is_gone(found)


async def report(client: AsyncClient) -> object:
    found = await read_cluster(client, NEW_INSTALLATION.names, with_pods=True)
    return found.pods and found.volumes and [one.time for one in found.events] == [LAST]


async def uses_of_volumes(client: AsyncClient) -> object:
    return [one.pod for one in await find_volume_uses(client)] == ["web"]


async def doctor(client: AsyncClient) -> object:
    attempts = Attempts(timeout_seconds=30)
    found = await gather_cluster(client, NEW_INSTALLATION.names, attempts)
    warnings = found.warnings_of("PersistentVolumeClaim", "7")
    return not attempts.gaps and found.claims and found.pods and found.shared_volumes and warnings


async def operator(client: AsyncClient) -> object:
    (found,) = await ObjectClient(client).list("Deployment", name="web")
    return found["metadata"]["name"] == "web"


async def migration(client: AsyncClient) -> object:
    state = await MigrationStore(client).state(NEW_INSTALLATION.names, None, {})
    return state.claims and state.volumes


async def shared_volume(client: AsyncClient) -> object:
    return await SharedVolumeStore(client).get(Owner(namespace="default", name="shared"))


@pytest.mark.parametrize(
    "read", [claims, report, uses_of_volumes, doctor, operator, migration, shared_volume]
)
async def test_no_reader_fails_at_the_objects_of_a_tenant(
    hostile: AsyncClient, read: Callable[[AsyncClient], Awaitable[object]]
) -> None:
    assert await read(hostile)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(PersistentVolumeClaim, "data"), (Pod, "web"), (SharedVolumeResource, "shared"), (Deployment, "web")],
)
async def test_no_watch_ends_at_the_objects_of_a_tenant(
    hostile: AsyncClient, kube: AsyncClient, kind: Any, name: str
) -> None:
    stream = follow(hostile, kind, read=lambda one: one.to_dict()["metadata"], namespace="*")
    async with asyncio.timeout(10), aclosing(stream) as changes:
        listed = await anext(changes)
        assert isinstance(listed, Listed)
        assert [(one["name"], one["managedFields"]) for one in listed.objects] == [(name, [])]
        patch = {"metadata": {"labels": {"a": "b"}}}
        await kube.patch(kind, name, patch, namespace="default", patch_type=PatchType.MERGE)
        changed = await anext(changes)
        assert isinstance(changed, Applied)
        assert (changed.object["labels"], changed.object["managedFields"]) == ({"a": "b"}, [])


async def test_other_answer_that_is_nested_too_deeply_is_no_kubernetes_response(
    client_of: Callable[[Any], AsyncClient],
) -> None:
    async def serve(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=b'{"metadata":{"name":"a"},"data":%s}' % DEEP)

    async with client_of(serve) as client:
        with pytest.raises(KubeUnavailable, match="did not answer with a Kubernetes response"):
            await ClaimStore(client).get("default", "a")
