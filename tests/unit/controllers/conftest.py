"""Tests of controllers with the mark ``virtual_time``: no pause passes while anything can run."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
from tests.simulation.virtual import VirtualLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of a test."""
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}
