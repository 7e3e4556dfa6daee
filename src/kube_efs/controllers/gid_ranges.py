"""How much of the group ids of each class is used, for the metrics."""

from collections.abc import Collection, Iterator

from kube_efs.model.claims import StorageClass
from kube_efs.model.csi_claims import DRIVER
from kube_efs.model.csi_parameters import parse_parameters
from kube_efs.model.directory_classes import parse_class
from kube_efs.model.errors import KubeEfsError
from kube_efs.model.gids import GidRange
from kube_efs.provisioning.volume_index import Inventory
from kube_efs.telemetry.metrics import ControllerMetrics


def watch_gid_ranges(metrics: ControllerMetrics, inventory: Inventory, provisioners: Collection[str]) -> None:
    """Have the metrics tell of every class of these provisioners, as it is whenever they are read."""

    def ranges() -> Iterator[tuple[str, GidRange]]:
        for name, one in sorted(inventory.classes.items()):
            gids = gid_range(one) if one.provisioner in provisioners else None
            if gids is not None:
                yield name, gids

    gids = inventory.gids
    metrics.gid_range_size.read = lambda: [([name], within.size) for name, within in ranges()]
    metrics.gid_range_used.read = lambda: [([name], gids.count(within)) for name, within in ranges()]


def gid_range(storage_class: StorageClass) -> GidRange | None:
    """The ids that volumes of the class are given; None for a class that gives none, or that is refused."""
    try:
        if storage_class.provisioner != DRIVER:
            return parse_class(storage_class).gids
        parameters = parse_parameters(storage_class.parameters)
    except KubeEfsError:
        return None
    return parameters.gids if parameters.uid is None or parameters.gid is None else None
