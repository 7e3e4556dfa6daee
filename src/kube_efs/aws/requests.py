"""Counts the HTTP requests of a client of the library, as aws-efs-csi-driver counts them.

A call of ``AwsConnection`` may send several requests: pages and retries. The hooks of the library see each of
them. The duration is that of the request alone, without the pauses between two attempts and without the wait
of the library's rate limiter.
"""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from kube_efs.telemetry.metrics import AwsDriverMetrics

# The codes that version 2 of the AWS SDK for Go regards as throttling.
_THROTTLED: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)


def count_requests(client: Any, metrics: AwsDriverMetrics, service: str) -> None:  # noqa: ANN401 - see connection.Client
    """Count every request that this client of the service sends from now on."""
    # The two hooks of a request have no argument in common, but the library calls both in the same task.
    started: ContextVar[float | None] = ContextVar("started", default=None)

    def before_send(**_given: object) -> None:
        started.set(time.monotonic())

    def response_received(
        *, event_name: str, parsed_response: Mapping[str, Any] | None, **_given: object
    ) -> None:
        since = started.get()
        if since is None:  # the rate limiter failed, and nothing was sent
            return
        started.set(None)
        labels = event_name.rpartition(".")[2], service
        metrics.request_seconds.labels(*labels).observe(time.monotonic() - since)
        code = (parsed_response or {}).get("Error", {}).get("Code")
        if code in _THROTTLED:
            metrics.throttles.labels(*labels).inc()
        elif code:
            metrics.errors.labels(*labels, code).inc()

    # Last, because the rate limiter waits in the same hook.
    client.meta.events.register_last("before-send", before_send)
    client.meta.events.register("response-received", response_received)
