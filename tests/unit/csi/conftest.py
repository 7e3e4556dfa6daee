"""Real servers and clients, on sockets in directories with short names."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.unit.csi.served import Connect, served


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def connect(registry: CollectorRegistry) -> Iterator[Connect]:
    """Serves a service, and returns a channel to it."""
    with tempfile.TemporaryDirectory(prefix="csi-") as name:
        yield partial(served, folder=Path(name), registry=registry)
