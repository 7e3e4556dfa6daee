import pytest
from lightkube.models.core_v1 import PersistentVolumeSpec, PersistentVolumeStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume

from tinykube.controllers.caches import Cache, Change
from tinykube.controllers.values import Key, Volume, read_volume

KEY = Key("", "vol")


def found(version: str, uid: str = "u", name: str = "vol", size: str = "1Gi") -> PersistentVolume:
    return PersistentVolume(
        metadata=ObjectMeta(name=name, uid=uid, resourceVersion=version),
        spec=PersistentVolumeSpec(capacity={"storage": size}),
        status=PersistentVolumeStatus(phase="Available"),
    )


@pytest.fixture
def cache() -> Cache[Volume]:
    return Cache(PersistentVolume, read_volume)


@pytest.fixture
def changes(cache: Cache[Volume]) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []

    def note(change: Change[Volume]) -> None:
        before, after = change.before, change.after
        seen.append((before.meta.version if before else "", after.meta.version if after else ""))

    cache.listen(note)
    return seen


def test_older_and_repeated_news_are_no_news(cache: Cache[Volume], changes: list[tuple[str, str]]) -> None:
    for version in ("9", "10", "10", "9"):
        cache.remember(found(version))
    assert changes == [("", "9"), ("9", "10")]
    assert cache.values[KEY].meta.version == "10"


def test_namesake_replaces_whatever_its_version(cache: Cache[Volume], changes: list[tuple[str, str]]) -> None:
    cache.remember(found("10"))
    cache.remember(found("2", uid="other"))
    assert changes == [("", "10"), ("10", "2")]


def test_listing_removes_what_is_not_in_it(cache: Cache[Volume], changes: list[tuple[str, str]]) -> None:
    cache.remember(found("1"))
    cache._replace([found("2", uid="w", name="other")])
    assert changes == [("", "1"), ("", "2"), ("1", "")]
    assert list(cache.values) == [Key("", "other")]


def test_late_answer_does_not_bring_back_what_is_gone(
    cache: Cache[Volume], changes: list[tuple[str, str]]
) -> None:
    cache.remember(found("1"))
    cache._forget(KEY)
    assert cache.remember(found("2"))
    assert not cache.values
    cache.remember(found("3", uid="made anew"))
    assert changes == [("", "1"), ("1", ""), ("", "3")]


def test_object_that_cannot_be_read_is_left_out(cache: Cache[Volume]) -> None:
    assert cache.remember(found("1", size="much")) is None
    assert not cache.values
