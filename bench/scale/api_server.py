"""What kube-apiserver itself counts: requests, bytes and refusals, by its /metrics."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import aiohttp
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.models import User

from kube_efs.kube.client import load_config

_LINE: Final = re.compile(r"^(?P<name>\w+)(\{(?P<labels>[^}]*)\})? (?P<value>\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_REQUESTS: Final = "apiserver_request_total"
# A watch is counted when it ends.
_RUNNING: Final = "apiserver_longrunning_requests"
_BYTES: Final = (
    "apiserver_response_sizes_sum",
    "apiserver_watch_events_sizes_sum",
    "apiserver_request_body_size_bytes_sum",
)
_TOO_MANY: Final = "429"
_MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters since the start of the API server; requests by verb, resource and code, bytes by resource."""

    started: float = 0.0
    requests: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    watches: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    megabytes: float = 0.0

    def since(self, before: Self) -> "Reading":
        """What has been added to them; a server that has started meanwhile counts from its start."""
        if self.started != before.started:
            return self
        return Reading(
            started=self.started,
            requests=self.requests - before.requests,
            watches=self.watches - before.watches,
            sizes=self.sizes - before.sizes,
            cpu_seconds=self.cpu_seconds - before.cpu_seconds,
            megabytes=self.megabytes,
        )

    def requests_for(self, *resources: str) -> int:
        """Requests for these resources, all without any, begun watches included."""
        ended = sum(n for (_, one, _), n in self.requests.items() if not resources or one in resources)
        return ended + sum(n for one, n in self.watches.items() if not resources or one in resources)

    def megabytes_for(self, *resources: str) -> float:
        """What was sent and received for these resources, all without any."""
        sizes = (size for one, size in self.sizes.items() if not resources or one in resources)
        return sum(sizes) / _MEGABYTE

    @property
    def refused(self) -> Counter[str]:
        """Requests that were answered 429, by verb and resource."""
        refused: Counter[str] = Counter()
        for (verb, resource, code), number in self.requests.items():
            if code == _TOO_MANY:
                refused[f"{verb} {resource}"] += number
        return refused

    @property
    def detail(self) -> str:
        """The most frequent requests."""
        most = self.requests.most_common(5)
        return ", ".join(f"{number} {verb} {resource} {code}" for (verb, resource, code), number in most)


class ApiServerCounters:
    """Reads them with the account of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self._config = load_config(kubeconfig)

    async def read(self) -> Reading:
        """The counters now."""
        user = self._config.user or User()
        trust = verify_cluster(self._config.cluster, user, self._config.abs_file)
        headers = {"Authorization": f"Bearer {user.token}"}
        url = f"{self._config.cluster.server}/metrics"
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
            session.get(url, headers=headers, raise_for_status=True) as answer,
        ):
            return parse(await answer.text())


def parse(text: str) -> Reading:
    """The counters in the text of /metrics."""
    requests: Counter[tuple[str, str, str]] = Counter()
    watches: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    single: dict[str, float] = {}
    for name, labels, value in _samples(text):
        resource = labels.get("resource", "")
        if name == _REQUESTS:
            requests[labels["verb"], resource, labels["code"]] += int(value)
        elif name == _RUNNING and labels["verb"] == "WATCH":
            watches[resource] += int(value)
        elif name in _BYTES:
            sizes[resource] += int(value)
        elif not labels:
            single[name] = value
    return Reading(
        started=single["process_start_time_seconds"],
        requests=requests,
        watches=watches,
        sizes=sizes,
        cpu_seconds=single["process_cpu_seconds_total"],
        megabytes=single["process_resident_memory_bytes"] / _MEGABYTE,
    )


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    wanted = (_REQUESTS, _RUNNING, *_BYTES, "process_")
    for line in text.splitlines():
        if line.startswith(wanted) and (found := _LINE.match(line)):
            yield found["name"], dict(_LABEL.findall(found["labels"] or "")), float(found["value"])
