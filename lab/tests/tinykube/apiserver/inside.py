"""The server's inside without HTTP: the service over a store, with a clock that tests set."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from tinykube.api.server import Bootstrap
from tinykube.custom.custom_types import CustomTypes
from tinykube.kinds.builtin_types import builtin_types
from tinykube.objects.admission import Admission
from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.resources import Registry, ResourceType
from tinykube.objects.service import Deleted, ObjectService, WriteOptions
from tinykube.objects.statuses import ApiError
from tinykube.objects.storage import ObjectKey, Store, Stored
from tinykube.objects.values import Json


class Inside:
    """The service with short names for what tests do; objects are named by plural and name."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.store = Store()
        self.registry = Registry(builtin_types())
        self.service = ObjectService(self.store, Admission(self.store), lambda: self.now)
        CustomTypes(self.store, self.registry, self.service)
        Bootstrap(self.store, self.registry, self.service).create_namespaces()

    def type_of(self, plural: str) -> ResourceType:
        versions = [(group, one) for group, all_of_it in self.registry.groups().items() for one in all_of_it]
        types = (found for group, version in versions for found in self.registry.in_version(group, version))
        return next(found for found in types if found.plural == plural)

    def key(self, plural: str, name: str, namespace: str = "default") -> ObjectKey:
        return ObjectKey(namespace if self.type_of(plural).namespaced else "", name)

    def create(self, plural: str, body: Json, namespace: str = "default", *, dry_run: bool = False) -> Json:
        resource = self.type_of(plural)
        options = WriteOptions(manager="tests", dry_run=dry_run)
        return self.service.create(resource, namespace if resource.namespaced else "", body, options).json

    def update(self, plural: str, body: Json, subresource: str = "") -> Json:
        key = self.key(plural, body["metadata"]["name"])
        options = WriteOptions(manager="tests", subresource=subresource)
        return self.service.update(self.type_of(plural), key, body, options).json

    def delete(self, plural: str, name: str, options: DeleteOptions | None = None) -> Deleted:
        return self.service.delete(self.type_of(plural), self.key(plural, name), options or DeleteOptions())

    def get(self, plural: str, name: str) -> Json:
        return self.service.get(self.type_of(plural), self.key(plural, name)).json

    def exists(self, plural: str, name: str) -> bool:
        return self.store.get(self.type_of(plural).group_resource, self.key(plural, name)) is not None

    def stored(self, plural: str) -> list[Stored]:
        return self.store.snapshot(self.type_of(plural).group_resource)

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Refusal:
    """The error that a block ended with."""

    error: ApiError


@contextmanager
def refused(code: int, text: str) -> Iterator[Refusal]:
    """The block is refused with this code and a message that contains the text."""
    caught = Refusal()
    with pytest.raises(ApiError) as info:
        yield caught
    caught.error = info.value
    assert (info.value.code, text in info.value.message) == (code, True), info.value.message
