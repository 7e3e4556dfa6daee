"""What tests of CSI drivers share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.tests.tinykube.kubelet.csi_plugin import Plugin


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    """A driver that is not running, in a folder with a short name, as paths of sockets need it."""
    with tempfile.TemporaryDirectory(prefix="csi-") as name:
        yield Plugin(Path(name))
