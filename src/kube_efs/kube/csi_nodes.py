"""The CSI drivers of a node."""

from collections.abc import Mapping
from typing import Any

from lightkube.generic_resource import create_global_resource

# The library's own class refuses null for a list. The API server gives null for a CSINode without drivers.
CsiNode = create_global_resource("storage.k8s.io", "v1", "CSINode", "csinodes")


def read_drivers(body: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """The name and the drivers in a CSINode."""
    drivers = (body.get("spec") or {}).get("drivers") or ()
    return body["metadata"]["name"], frozenset(one["name"] for one in drivers)
