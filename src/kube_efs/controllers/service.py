"""What both queues, of claims and of volumes, work with."""

from dataclasses import dataclass

from kube_efs.controllers.events import Announcer
from kube_efs.provisioning.engine import Engine
from kube_efs.provisioning.volume_index import Inventory
from kube_efs.telemetry.metrics import ControllerMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The engine, what it knows, who tells people, and the least time between two tries (seconds)."""

    engine: Engine
    inventory: Inventory
    announcer: Announcer
    metrics: ControllerMetrics
    backoff_seconds: float
