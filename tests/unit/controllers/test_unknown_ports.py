"""Volumes with the port of no known file system."""

from prometheus_client import CollectorRegistry

from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.controllers.tunnel_targets import UnknownPorts
from kube_efs.model.volumes import NfsSource, Volume
from kube_efs.telemetry.metrics import ControllerMetrics


class Noting(ProvisioningEvents):
    """Records the reported volumes."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def port_unknown(self, volume: Volume) -> None:
        self.told.append(volume.name)


def static(name: str) -> Volume:
    source = NfsSource(server="localhost", path="/team/data")
    return Volume(name=name, uid=f"uid-of-{name}", nfs=source, mount_options=("port=20497",))


def test_each_unknown_port_is_counted_and_reported_once_while_it_lasts() -> None:
    events, registry = Noting(), CollectorRegistry()
    ports = UnknownPorts(events, ControllerMetrics(registry))
    ports.update([static("a")])
    ports.update([static("a"), static("b")])
    assert events.told == ["a", "b"]
    assert registry.get_sample_value("kube_efs_volumes_of_unknown_port") == 2
    ports.update([])
    assert registry.get_sample_value("kube_efs_volumes_of_unknown_port") == 0
    ports.update([static("a")])
    assert events.told == ["a", "b", "a"]
