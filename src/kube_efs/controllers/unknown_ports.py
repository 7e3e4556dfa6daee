"""Warnings about volumes whose port belongs to no file system that is known."""

from collections.abc import Sequence

from kube_efs.controllers.events import Announcer
from kube_efs.model.volumes import Volume
from kube_efs.telemetry.metrics import ControllerMetrics


class UnknownPorts:
    """Counts the volumes, and warns once about each."""

    def __init__(self, announcer: Announcer, metrics: ControllerMetrics) -> None:
        self._announcer = announcer
        self._metrics = metrics
        self._warned: set[str] = set()

    def update(self, volumes: Sequence[Volume]) -> None:
        """Take note of all such volumes of now."""
        self._metrics.volumes_of_unknown_port.set(len(volumes))
        for volume in volumes:
            if volume.uid not in self._warned:
                self._announcer.port_unknown(volume)
        self._warned = {volume.uid for volume in volumes}
