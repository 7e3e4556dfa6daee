"""A real Prometheus on the metrics of running processes, with all rules of the product.

The rules have no waiting times here. Two of them have smaller limits, because they are about half an hour and
about thousands of file systems. promtool runs the rules unchanged, with the cases of tests/monitoring.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from fake_efs.process import ChildProcess
from kube_efs.operator.manifests import load_asset
from kube_efs_lab.program import Program

# The end of the expression of an alert, and what replaces it.
_SMALLER: Final = {
    "EFSDiscoveryOld": ("> 1800", "> 10"),
    "EFSTargetsNearLimit": ("> 786432", "> 2000"),
}
_START_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 0.1


class Prometheus:
    """A running Prometheus; ``folder`` has its configuration and the addresses of the processes."""

    def __init__(self, url: str, folder: Path, labels: Mapping[str, str]) -> None:
        self._url = url
        self._labels = labels
        self.folder = folder

    async def is_ready(self) -> bool:
        """Whether it answers queries: it listens before it has read its data."""
        async with aiohttp.ClientSession() as session, session.get(f"{self._url}/-/ready") as answer:
            return answer.status == HTTPStatus.OK

    async def query(self, expression: str) -> list[Any]:
        """The series of the expression."""
        found: list[Any] = (await self._ask("query", query=expression))["result"]
        return found

    async def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = (await self._ask("alerts"))["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    async def _ask(self, path: str, **query: str) -> Any:
        url = f"{self._url}/api/v1/{path}"
        async with aiohttp.ClientSession() as session, session.get(url, params=query) as answer:
            body = await answer.json()
        assert body["status"] == "success", body
        return body["data"]

    def read_from(self, programs: Mapping[str, Program]) -> None:
        """Read these processes from now on, which have the labels that the PodMonitors give.

        Each process is a pod of its own: what an earlier one has done must not count for it.
        """
        _write_addresses(self.folder, programs, self._labels)


@asynccontextmanager
async def running_prometheus(
    folder: Path, programs: Mapping[str, Program], **labels: str
) -> AsyncIterator[Prometheus]:
    """Prometheus, which reads the processes every second while the context is open."""
    _write_addresses(folder, programs, labels)
    process = await ChildProcess.start(
        "prometheus",
        f"--config.file={_configuration(folder, programs)}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        log_file=folder / "prometheus.log",
    )
    try:
        port = await process.listening_port(timeout_seconds=_START_SECONDS)
        found = Prometheus(f"http://127.0.0.1:{port}", folder, labels)
        async with asyncio.timeout(_START_SECONDS):
            while not await found.is_ready():  # noqa: ASYNC110 - asked from outside
                await asyncio.sleep(_PAUSE_SECONDS)
            while len(await found.query("up == 1")) < len(programs):  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_SECONDS)
        yield found
    finally:
        await process.stop()


def _write_addresses(folder: Path, programs: Mapping[str, Program], labels: Mapping[str, str]) -> None:
    """Write the files that Prometheus watches."""
    for name, program in programs.items():
        address = program.health_url.removeprefix("http://")
        pod = f"kube-efs-{name}-{address.rpartition(':')[2]}"
        target = {"targets": [address], "labels": {"pod": pod, **labels}}
        draft = folder / f"{name}.draft"
        draft.write_text(json.dumps([target]))
        draft.rename(folder / f"{name}.json")


def _configuration(folder: Path, programs: Mapping[str, Program]) -> Path:
    jobs = [
        {"job_name": name, "file_sd_configs": [{"files": [f"{name}.json"], "refresh_interval": "1s"}]}
        for name in programs
    ]
    settings = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": jobs,
    }
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": _groups()}))
    configuration = folder / "prometheus.yaml"
    configuration.write_text(yaml.safe_dump(settings))
    return configuration


def _groups() -> list[Any]:
    objects = [one for asset in ("rules", "operator-monitoring") for one in load_asset(asset)]
    groups = [group for one in objects if one["kind"] == "PrometheusRule" for group in one["spec"]["groups"]]
    for rule in (rule for group in groups for rule in group["rules"]):
        rule.pop("for", None)
        if limits := _SMALLER.get(rule["alert"]):
            usual, smaller = limits
            assert rule["expr"].endswith(usual)
            rule["expr"] = rule["expr"].removesuffix(usual) + smaller
    return groups
