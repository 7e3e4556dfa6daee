"""A simulated node: its mounts and the holders of tunnels are two collections.

Calls run concurrently at every step, can fail, and can be delayed. A cancelled mount may still succeed, as
mount(2) does if its program is killed too late.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from lightkube import AsyncClient

from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.node_volumes import NodeVolumes
from kube_efs.csi.publication import NodeMount, Publication, VolumeUse
from kube_efs.model.csi.capabilities import AccessMode, VolumeCapability
from kube_efs.model.csi.mount_options import plan_mount
from kube_efs.model.csi.volume_attributes import parse_attributes
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.ids import Region, ZoneName
from kube_efs.model.errors import KubeEfsError, MountFailed, TunnelNotReady
from kube_efs.mounts.table import MountTable
from kube_efs.tunnels.api.client import TunnelOnDemand
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs.tunnels.status import TunnelState

FS, OTHER_FS = "fs-0123456789abcdef0", "fs-0123456789abcdef1"
NODE_INFO = NodeInfo(node_id="i-0a", region=Region("us-east-1"))
HERE: Mapping[str, str] = MappingProxyType({"mounttargetip": "127.0.0.1"})
# Before and after a restart during which the instance metadata do not answer.
IN_ZONE_2 = replace(NODE_INFO, zone=ZoneName("us-east-1a"), zone_id="use1-az2")
WITHOUT_ZONE_ID = replace(IN_ZONE_2, zone_id=None)
BY_ZONE_ID: Mapping[str, str] = MappingProxyType(
    {"mounttargetipmap": '{"use1-az1":"10.0.1.1","use1-az2":"10.0.2.1"}'}
)
_FIRST_PORT = 22000


async def no_pause() -> None:
    """Let other tasks run once."""
    await asyncio.sleep(0)


@dataclass(slots=True)
class World:
    """Mounter and tunnel client for ``NodeVolumes``; ``chance`` decides whether a step fails."""

    folder: Path
    chance: Callable[[], bool] = lambda: False
    mounted: dict[Path, str] = field(default_factory=dict)
    holders_by_spec: dict[TunnelSpec, set[Holder]] = field(default_factory=dict)
    missing: set[Holder] = field(default_factory=set)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    mounting: int = 0
    most_at_once: Counter[str] = field(default_factory=Counter)
    failure: Exception | None = None
    # Which identities have no credentials, and which connections EFS refuses.
    # Why there is no tunnel with an identity.
    identity_failure: KubeEfsError | None = None
    refuses: Callable[[TunnelSpec], bool] = lambda _: False
    client: AsyncClient | None = None
    pod_tokens: list[str] = field(default_factory=list)
    refusal: Exception | None = None
    # Why the tunnels are not up.
    tunnel_problem: str = ""
    table: MountTable = field(init=False)
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.gate.set()
        self.table = MountTable(read=self._read, ask=self.mounted.__contains__)

    def volumes(self, node_info: NodeInfo = NODE_INFO) -> NodeVolumes:
        """A newly started driver."""
        return NodeVolumes(self, self, node_info, client=self.client)

    def target(self, name: str) -> Path:
        return self.folder / name / "mount"

    def wanted(
        self,
        target: str,
        volume: str = FS,
        *,
        one_pod: bool = True,
        tls: bool = True,
        flags: tuple[str, ...] = (),
        at: Mapping[str, str] = HERE,
    ) -> Publication:
        """A mount of that volume, with the mount targets in these attributes, at that target."""
        mode = AccessMode.SINGLE_NODE_SINGLE_WRITER if one_pod else AccessMode.MULTI_NODE_MULTI_WRITER
        attributes = {**at, **({} if tls else {"encryptInTransit": "false"})}
        plan = plan_mount(
            parse_volume_handle(volume),
            parse_attributes(attributes),
            VolumeCapability(access_mode=mode, mount_flags=flags),
            read_only=False,
        )
        mount = NodeMount(volume_id=volume, target=self.target(target))
        return Publication(use=VolumeUse(mount=mount, is_for_one_pod=one_pod), plan=plan)

    @property
    def holders(self) -> set[Holder]:
        return {holder for holders in self.holders_by_spec.values() for holder in holders}

    async def mount(self, source: str, target: Path, options: str) -> None:
        self.mounting += 1
        try:
            await self.gate.wait()
            await no_pause()
            port = int(options.rpartition("port=")[2]) if "port=" in options else 0
            if port and self.refuses(list(self.holders_by_spec)[port - _FIRST_PORT]):
                raise MountFailed("access denied by server", field="target", value=str(target))
            if self.failure or self.chance():
                raise self.failure or MountFailed("ended with status 32", field="target", value=str(target))
            self._appear(source, target, options)
            await no_pause()
        except asyncio.CancelledError:
            if self.chance():
                self._appear(source, target, options)
            raise
        finally:
            self.mounting -= 1

    def _appear(self, source: str, target: Path, options: str) -> None:
        assert target.is_dir()
        self.mounted[target] = f"{next(self._ids)} 0 0:9 / {target} rw - nfs4 {source} {options}\n"
        there = sum(f" {source} " in line for line in self.mounted.values())
        self.most_at_once[source] = max(self.most_at_once[source], there)

    async def unmount(self, target: Path, *, force: bool = False, lazy: bool = False) -> None:
        await no_pause()
        if self.chance():
            raise MountFailed("target is busy", field="target", value=str(target))
        self.mounted.pop(target, None)
        await no_pause()

    def _read(self) -> tuple[bytes, bool]:
        return "".join(self.mounted.values()).encode(), True

    async def ensure(self, spec: TunnelSpec, holder: Holder) -> int:
        await no_pause()
        if self.identity_failure and spec.iam:
            raise self.identity_failure
        if self.chance():
            raise TunnelNotReady("is not there in time", field="tunnel", value=spec.name)
        self.holders_by_spec.setdefault(spec, set()).add(holder)
        await no_pause()
        return _FIRST_PORT + list(self.holders_by_spec).index(spec)

    async def ensure_for_pod(self, spec: TunnelSpec, holder: Holder, token: str) -> int:
        self.pod_tokens.append(token)
        if self.refusal:
            raise self.refusal
        return await self.ensure(spec, holder)

    async def release(self, holder: Holder) -> None:
        await no_pause()
        if self.chance():
            raise TunnelNotReady("does not answer", field="tunnel agent")
        for holders in self.holders_by_spec.values():
            holders.discard(holder)
        await no_pause()

    async def tunnels(self) -> tuple[TunnelOnDemand, ...]:
        await no_pause()
        return tuple(
            TunnelOnDemand(
                name=spec.name,
                spec=spec,
                port=_FIRST_PORT + number,
                state=TunnelState.DOWN if self.tunnel_problem else TunnelState.UP,
                reason=self.tunnel_problem,
                certificate_ends="",
                holders=frozenset(holders),
                connections=0,
            )
            for number, (spec, holders) in enumerate(self.holders_by_spec.items())
        )

    async def reconcile(self, holders: Collection[Holder]) -> frozenset[Holder]:
        """As in the agent: a holder that is missing twice is removed."""
        missing = self.holders - set(holders)
        forgotten, self.missing = missing & self.missing, missing
        for of_tunnel in self.holders_by_spec.values():
            of_tunnel.difference_update(forgotten)
        return frozenset(forgotten)
