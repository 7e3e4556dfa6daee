from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kube_efs.telemetry.metrics import (
    ApiServerMetrics,
    AwsMetrics,
    ControllerMetrics,
    CsiMetrics,
    Outcome,
    TunnelMetrics,
    new_registry,
)

GROUPS = [ApiServerMetrics, AwsMetrics, ControllerMetrics, CsiMetrics, TunnelMetrics]


@pytest.mark.parametrize("group", GROUPS)
def test_all_metric_names_begin_with_the_name_of_the_product(
    group: Callable[[CollectorRegistry], object],
) -> None:
    registry = CollectorRegistry()
    group(registry)

    names = [metric.name for metric in registry.collect()]
    assert names
    assert all(name.startswith("kube_efs_") for name in names)
    assert all(metric.documentation for metric in registry.collect())


def test_all_groups_and_the_process_figures_fit_in_one_registry() -> None:
    registry = new_registry()
    for group in GROUPS:
        group(registry)

    text = generate_latest(registry).decode()

    assert "process_resident_memory_bytes" in text
    assert 'kube_efs_build_info{version="' in text


def test_count_is_found_by_its_labels() -> None:
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)

    metrics.provisionings.labels("gnuthought.com/efs-stunnel", Outcome.SUCCEEDED).inc()

    labels = {"provisioner": "gnuthought.com/efs-stunnel", "outcome": "succeeded"}
    assert registry.get_sample_value("kube_efs_provisionings_total", labels) == 1


def test_groups_and_directories_have_figures_of_their_own() -> None:
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)

    metrics.gids_in_use.set(3)
    metrics.gid_range_full.labels("aws-efs").inc()
    metrics.directories_without_volume.labels("example.com/aws-efs").set(2)

    text = generate_latest(registry).decode().splitlines()
    assert {
        "kube_efs_gids_in_use 3.0",
        'kube_efs_gid_range_full_total{storage_class="aws-efs"} 1.0',
        'kube_efs_directories_without_volume{provisioner="example.com/aws-efs"} 2.0',
    } <= set(text)
