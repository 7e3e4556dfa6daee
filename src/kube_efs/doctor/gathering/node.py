"""Reads the facts from this node: its tunnels, its processes, its kernel."""

import asyncio
import itertools
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from kube_efs.doctor.gathering import kernel
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.handshakes import check_ca_files, shake_hands
from kube_efs.doctor.gathering.stunnel_configuration import parse_configuration
from kube_efs.doctor.node_facts import (
    CaFile,
    ConfiguredTunnel,
    Handshake,
    NodeFacts,
    ProcessHealth,
    TunnelFacts,
)
from kube_efs.model.errors import PlatformError, RelayUnavailable
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs.tunnels.options import relay_socket
from kube_efs.tunnels.probe import probe
from kube_efs.tunnels.relay.control import RelayControl
from kube_efs.tunnels.sockets.ports import read_ports
from kube_efs.tunnels.status import TunnelsStatus
from kube_efs.tunnels.stunnel.assignment import shard_files

AGENT: Final = "tunnel agent"
DRIVER: Final = "CSI driver"
_AT_ONCE: Final = 8
# A node's whole set of mount targets is tried, while a user waits.
_CONNECT_SECONDS: Final = 3.0
_NULL_CALL_SECONDS: Final = 8.0
_HEALTH_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheckOptions:
    """The paths and addresses on this node. ``driver_url`` is None if no CSI driver is expected."""

    name: str
    configuration: Path
    agent_url: str
    driver_url: str | None = None
    kernel_log: Path = kernel.KMSG


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tunnels:
    found: tuple[TunnelFacts, ...] | None = None
    ca_files: tuple[CaFile, ...] = ()
    listening: frozenset[int] | None = field(default=None)


class _HealthPage(msgspec.Struct):
    ok: bool
    reasons: tuple[str, ...] = ()


async def gather_node(options: NodeCheckOptions, attempts: Attempts) -> NodeFacts:
    """The facts from this node."""
    look, in_thread = attempts.look, asyncio.to_thread
    async with aiohttp.ClientSession(trust_env=False) as session, asyncio.TaskGroup() as tasks:
        start = tasks.create_task
        tunnels = start(look("the tunnels", _tunnels(options.configuration)))
        processes = start(_processes(session, options))
        status = start(_status(session, options.agent_url))
        log = start(look("the kernel's log", in_thread(kernel.read_kernel_log, options.kernel_log)))
        booleans = start(look("SELinux", in_thread(kernel.read_booleans)))
        mounts = start(look("the mounts", in_thread(lambda: kernel.loopback_mounts(read_mountinfo()))))
    seen = tunnels.result()
    if seen is None:
        seen = _Tunnels(found=())
    return NodeFacts(
        name=options.name,
        configuration=options.configuration,
        tunnels=seen.found,
        ca_files=seen.ca_files,
        listening=seen.listening,
        mounts=mounts.result() or (),
        processes=processes.result(),
        status=status.result(),
        kernel=log.result(),
        booleans=booleans.result(),
    )


async def _tunnels(configuration: Path) -> _Tunnels:
    reading = await asyncio.to_thread(read_ports)
    listening = reading.listening if reading else None
    of_stunnel = await asyncio.to_thread(_configured, configuration)
    relayed = await _relayed(configuration)
    if of_stunnel is None and relayed is None:
        return _Tunnels(listening=listening)
    tunnels = (*(of_stunnel or ()), *(relayed or ()))
    ca_files = await asyncio.to_thread(check_ca_files, {one.ca_file for one in tunnels})
    good = {one.path for one in ca_files if not one.problem}
    slots, numbers = asyncio.Semaphore(_AT_ONCE), itertools.count(1)

    async def with_slot(work: Awaitable[TunnelFacts]) -> TunnelFacts:
        async with slots:
            return await work

    looks = (_look_at(one, listening, next(numbers), verify=one.ca_file in good) for one in tunnels)
    found = await asyncio.gather(*map(with_slot, looks))
    return _Tunnels(found=tuple(found), ca_files=ca_files, listening=listening)


def _configured(configuration: Path) -> tuple[ConfiguredTunnel, ...] | None:
    """The tunnels in the configurations of all stunnels; None without a configuration."""
    tunnels: list[ConfiguredTunnel] = []
    paths = shard_files(configuration).values()
    for path in paths:
        try:
            tunnels += parse_configuration(path.read_text(encoding="utf-8"))
        except FileNotFoundError:  # that stunnel has just ended
            continue
        except (OSError, UnicodeDecodeError) as error:
            remedy = "run the doctor as the user of the tunnel agent, or as root"
            raise PlatformError(
                f"cannot be read ({error})", field="STUNNEL_CONF_PATH", value=str(path), remedy=remedy
            ) from error
    return tuple(tunnels) if paths else None


async def _relayed(configuration: Path) -> tuple[ConfiguredTunnel, ...] | None:
    """The tunnels of the relay; None without a relay, or with that of another user."""
    try:
        state = await RelayControl(relay_socket(configuration)).state()
    except RelayUnavailable:
        return None
    return tuple(
        ConfiguredTunnel(
            name=one.service.name,
            port=one.service.port,
            addresses=one.service.addresses,
            check_host=one.service.check_host,
            ca_file=one.service.ca_file,
        )
        for one in state.services
    )


async def _look_at(
    tunnel: ConfiguredTunnel, listening: frozenset[int] | None, number: int, *, verify: bool
) -> TunnelFacts:
    null_call = await probe(tunnel.port, timeout_seconds=_NULL_CALL_SECONDS, xid=number)
    handshakes: list[Handshake] = []
    if verify:
        calls = (shake_hands(one, tunnel, timeout_seconds=_CONNECT_SECONDS) for one in tunnel.addresses)
        handshakes = await asyncio.gather(*calls)
    return TunnelFacts(
        tunnel=tunnel,
        listening=null_call.ok or listening is None or tunnel.port in listening,
        null_call=null_call,
        handshakes=tuple(handshakes),
    )


async def _processes(session: aiohttp.ClientSession, options: NodeCheckOptions) -> tuple[ProcessHealth, ...]:
    asked = [(AGENT, options.agent_url), *([(DRIVER, options.driver_url)] if options.driver_url else [])]
    return tuple(await asyncio.gather(*(_health(session, name, url) for name, url in asked)))


async def _health(session: aiohttp.ClientSession, name: str, url: str) -> ProcessHealth:
    try:
        pages = [
            msgspec.json.decode(await _text(session, f"{url}/{page}"), type=_HealthPage)
            for page in ("healthz", "readyz")
        ]
    except (aiohttp.ClientError, OSError) as error:
        reason = str(error) or f"no answer within {_HEALTH_SECONDS:g} s"
        return ProcessHealth(name=name, url=url, unreachable=reason)
    except msgspec.DecodeError:
        reason = "another program answers there"
        return ProcessHealth(name=name, url=url, unreachable=reason)
    reasons = [reason for page in pages if not page.ok for reason in page.reasons or ("no reason reported",)]
    return ProcessHealth(name=name, url=url, reasons=tuple(reasons))


async def _status(session: aiohttp.ClientSession, url: str) -> TunnelsStatus | None:
    """The agent's own view; None without one, which its health shows already."""
    try:
        return msgspec.json.decode(await _text(session, f"{url}/tunnels"), type=TunnelsStatus)
    except (aiohttp.ClientError, OSError, msgspec.DecodeError):
        return None


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url, timeout=aiohttp.ClientTimeout(total=_HEALTH_SECONDS)) as answer:
        return await answer.text()
