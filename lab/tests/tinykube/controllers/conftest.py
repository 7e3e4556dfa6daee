"""Claims and volumes with a few words."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest

from tinykube.controllers.values import Claim, ClaimReference, Key, Meta, Volume

MakeClaim = Callable[..., Claim]
MakeVolume = Callable[..., Volume]


@pytest.fixture
def claim() -> MakeClaim:
    def make(annotations: Mapping[str, str] | None = None, **fields: Any) -> Claim:
        meta = Meta(key=Key("team", "data"), uid="claim-uid", version="1", annotations=annotations or {})
        defaults: dict[str, Any] = {"access_modes": ("ReadWriteMany",), "request_bytes": Decimal(1000)}
        return Claim(meta=meta, **{**defaults, **fields})

    return make


@pytest.fixture
def volume() -> MakeVolume:
    def make(
        name: str = "vol",
        *,
        size: int = 1000,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        deleting: bool = False,
        **fields: Any,
    ) -> Volume:
        meta = Meta(
            key=Key("", name),
            uid=f"{name}-uid",
            version="1",
            annotations=annotations or {},
            labels=labels or {},
            deleting=deleting,
        )
        defaults: dict[str, Any] = {"access_modes": ("ReadWriteMany",)}
        return Volume(meta=meta, capacity=str(size), capacity_bytes=Decimal(size), **{**defaults, **fields})

    return make


def reference(name: str = "data", uid: str = "") -> ClaimReference:
    return ClaimReference(key=Key("team", name), uid=uid)
