"""Real servers and clients, on sockets in folders with short names, as sockets need."""

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
    """Serves the service that it is given, and gives a channel to it."""
    with tempfile.TemporaryDirectory(prefix="csi-") as name:
        yield partial(served, folder=Path(name), registry=registry)
