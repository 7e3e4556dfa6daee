"""Gauges whose values are read when Prometheus scrapes the metrics, so that no value is outdated."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

Reading = tuple[Sequence[str], float]


class ReadGauge(Collector):
    """A gauge with labels; ``read`` returns the current values, each with the values of its labels."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], *, registry: CollectorRegistry
    ) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = tuple(labels)
        self.read: Callable[[], Iterable[Reading]] = tuple
        registry.register(self)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The gauge without values."""
        yield GaugeMetricFamily(self.name, self.documentation, labels=self.labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauge with its current values."""
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labels)
        for labels, value in self.read():
            family.add_metric(labels, value)
        yield family
