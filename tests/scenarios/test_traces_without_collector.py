"""Traces to a collector that does not exist."""

import asyncio

import pytest
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}


async def test_unreachable_collector_delays_no_claim_and_is_one_line_of_the_log(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    names = [f"claim-{number}" for number in range(10)]
    # One export to a collector that does not answer would take ten seconds, for each claim.
    async with asyncio.timeout(steps.DEADLINE_SECONDS):
        for name in names:
            await client.create(steps.claim(namespace, name, storage_class, {"volume_name": name}))
        for name in names:
            await steps.bound_volume(client, namespace, name)

    async def is_logged() -> bool:
        return "traces-not-sent" in await asyncio.to_thread(cluster.controller.log_file.read_text)

    await steps.eventually(is_logged, what="the collector is missed")
    async with asyncio.timeout(5):
        assert await cluster.controller.stop() == 0
    log = cluster.controller.log_file.read_text()
    assert log.count("traces-not-sent") == 1
    assert '"opentelemetry' not in log
