"""Whether a container is ready, asked of it over HTTP as pkg/kubelet/prober does."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from tinykube.errors import InvalidValue
from tinykube.kubelet.pods import Container, Probe

# Kubernetes too asks sooner than its period while a container is not ready.
_UNREADY_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A probe with its address."""

    url: str
    probe: Probe


def check_of(probe: Probe, container: Container, *, address: str, port: int | None) -> Check:
    """Where the probe asks, at ``port`` instead of its own if there is one; raises InvalidValue."""
    if port is None:
        found = int(probe.port) if probe.port.isdecimal() else container.ports.get(probe.port)
        if found is None:
            raise InvalidValue("is no port of the container", field="probe", value=probe.port)
        port = found
    host = probe.host or address
    return Check(url=f"{probe.scheme}://{host}:{port}/{probe.path.removeprefix('/')}", probe=probe)


async def follow_readiness(check: Check, said: Callable[[bool, str], None]) -> None:
    """Tell each time that it becomes ready or unready, and why, until cancelled."""
    ready, times = False, 0
    await asyncio.sleep(check.probe.delay_seconds)
    while True:
        problem = await ask(check)
        times = 0 if ready is not bool(problem) else times + 1
        if times >= (check.probe.failures if ready else check.probe.successes):
            ready, times = not ready, 0
            said(ready, problem)
        await asyncio.sleep(check.probe.period_seconds if ready else _UNREADY_SECONDS)


async def ask(check: Check) -> str:
    """What is wrong, empty when nothing is."""
    timeout = aiohttp.ClientTimeout(total=check.probe.timeout_seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(check.url, allow_redirects=False, ssl=False) as answer,
        ):
            good = 200 <= answer.status < 400
            return "" if good else f"HTTP probe failed with statuscode: {answer.status}"
    except TimeoutError:
        return f'Get "{check.url}": context deadline exceeded'
    except aiohttp.ClientError as error:
        return f'Get "{check.url}": {error}'
