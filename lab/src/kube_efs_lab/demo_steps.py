"""What the demo does and checks, step by step, on a running embedded cluster."""

import asyncio
import ssl
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from lightkube.resources.core_v1 import PersistentVolumeClaim

from fake_efs.errors import EfsError
from fake_efs.file_systems import server_names
from kube_efs.kube.errors import translated
from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import KubeEfsError, NotYet, TunnelError
from kube_efs.report.reading import read_cluster
from kube_efs.report.values import ClaimReport, ClusterReport, FileSystemReport, VolumeReport
from kube_efs.tunnels.status import TunnelState
from kube_efs_lab.clients import Handshake, TunnelClient, shake_hands
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.demo_pods import CLAIM, SHARED_CLAIM, SHARED_NAMESPACE, DemoPods, tunnel_of
from kube_efs_lab.manifests import (
    DIRECTORY_CLAIM,
    DIRECTORY_CLASS,
    EXAMPLE_CLAIM,
    STORAGE_CLASS,
    STORAGE_CLASS_NAME,
    apply,
    claim_like_example,
)
from kube_efs_lab.programs import NAMES
from tinykube.kubelet.nfs import kernel_has_nfs

_EXAMPLE, _KEPT, _CHOSEN, _INVALID = "efs-example", "efs-kept", "efs-chosen", "efs-invalid"
_DIRECTORY = "efs"
_MOUNTED = CLAIM
_TUNNELLED = (_EXAMPLE, _KEPT, _CHOSEN)
_VALID = (*_TUNNELLED, _DIRECTORY, _MOUNTED)
_GIDS = range(40000, 50001)
_GROUP_MODE = 0o2771
_SOMEBODY = 65534  # who owns nothing, as a user and as a group
_STEP_SECONDS = 30.0
_POLL_SECONDS = 0.1
_FILE = "hello.txt"
_TEXT = "Written by one connection, read by another.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A promise and whether it held; ``detail`` is the evidence, or what went wrong."""

    name: str
    ok: bool
    detail: str


class Demo:
    """The steps on one cluster.

    ``report`` is what it looked like at the last step, ``handshakes`` what TLS agreed on with each file
    system's mount target.
    """

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.report = ClusterReport()
        self.handshakes: dict[FileSystemId, Handshake] = {}
        self._cluster = cluster
        self._pods = DemoPods(cluster)
        self._volumes: dict[str, VolumeReport] = {}

    async def provision(self) -> AsyncIterator[Check]:
        """From nothing to volumes with data in them."""
        yield await _checked("objects applied", self._apply)
        yield await _checked("valid claims bound", self._bound)
        yield await _checked("invalid claim refused with a reason", self._refused)
        yield await _checked("tunnels up", self._tunnels_up)
        yield await _checked("file written and read back through the tunnel", self._transfer)
        yield await _checked("directory of a group of its own", self._grouped)
        yield await _checked("only its group writes into it", self._only_group_writes)
        yield await _checked("pod writes into its access point through a CSI mount", self._written)
        yield await _checked("another pod reads it", self._read)
        yield await _checked("a SharedVolume shows it in another namespace", self._share)
        yield await _checked("the mounts' tunnel leads to the same file", self._read_through_tunnel)
        yield await _checked("TLS negotiated, peer verified", self._negotiate)
        yield await _checked("peer of another name refused", self._refuse_other_peer)

    async def reclaim(self) -> AsyncIterator[Check]:
        """What becomes of the data when the claims go."""
        yield await _checked("SharedVolume deleted, claim and volume gone", self._unshare)
        yield await _checked("pods deleted, volumes unmounted", self._delete_pods)
        yield await _checked("claims deleted", self._delete_claims)
        yield await _checked("Delete removed the data", self._removed)
        yield await _checked("Delete removed the access point", self._access_point_removed)
        yield await _checked("Retain kept the data", self._kept)

    async def _apply(self) -> str:
        # "auto" takes the first id, so that this one is chosen by the claim alone.
        other = max(self._cluster.file_system_ids)
        claims = [
            EXAMPLE_CLAIM,
            claim_like_example(_KEPT, volume_name="kept", reclaim_policy="Retain"),
            claim_like_example(_CHOSEN, volume_name="chosen", file_system_id=other),
            claim_like_example(_INVALID, volume_name="Not-A-Name"),
        ]
        await apply(self._cluster.client, [STORAGE_CLASS, *claims, DIRECTORY_CLASS, DIRECTORY_CLAIM])
        await self._pods.apply(other)
        return f"StorageClasses {STORAGE_CLASS_NAME}, slow and efs-sc-1, {len(claims) + 2} claims, 2 pods"

    async def _bound(self) -> str:
        started = time.monotonic()
        await self._until(self._unbound)
        seconds = time.monotonic() - started
        volumes = {volume.name: volume for volume in self.report.volumes}
        self._volumes = {name: volumes[self._claim(name).volume] for name in _VALID}
        return f"{len(_VALID)} claims, {seconds:.1f} s after they were applied"

    async def _unbound(self) -> list[str]:
        claims = [self._claim(name) for name in _VALID]
        return [_describe(claim) for claim in claims if claim.phase != "Bound"]

    async def _refused(self) -> str:
        await self._until(self._not_refused)
        return self._claim(_INVALID).reason

    async def _not_refused(self) -> list[str]:
        claim = self._claim(_INVALID)
        return [] if claim.phase == "Pending" and claim.reason else [_describe(claim)]

    async def _tunnels_up(self) -> str:
        await self._until(self._tunnels_down)
        return f"{len(self._cluster.file_system_ids)} on node {self.report.nodes[0].node}"

    async def _tunnels_down(self) -> list[str]:
        tunnels = {tunnel.file_system_id: tunnel for node in self.report.nodes for tunnel in node.tunnels}
        found = [(one, tunnels.get(one)) for one in self._cluster.file_system_ids]
        return [
            f"{one} is {tunnel.state} ({tunnel.reason})" if tunnel else f"{one} has none"
            for one, tunnel in found
            if tunnel is None or tunnel.state is not TunnelState.UP
        ]

    async def _transfer(self) -> str:
        source = self._cluster.folder / _FILE
        await asyncio.to_thread(source.write_text, _TEXT)
        for name in _TUNNELLED:
            volume = self._made(name)
            client, directory = self._way_to(volume)
            await client.write(source, directory, _FILE)
            if await client.read(directory, _FILE) != _TEXT.encode():
                raise TunnelError("is not what was written", field=f"{volume.path}/{_FILE}")
        example = self._made(_EXAMPLE)
        return f"{len(_TEXT)} bytes in {example.path}/{_FILE} through 127.0.0.1:{example.port}"

    async def _grouped(self) -> str:
        volume = self._made(_DIRECTORY)
        folder = self._cluster.efs.folder(FileSystemId(volume.file_system_id)) / volume.path.lstrip("/")
        try:
            found = await asyncio.to_thread(folder.stat)
        except FileNotFoundError as error:
            raise NotYet("is not there", field="directory", value=volume.path) from error
        mode = stat.S_IMODE(found.st_mode)
        if volume.gid not in _GIDS or (found.st_gid, mode) != (volume.gid, _GROUP_MODE):
            raise NotYet(f"has group {found.st_gid} and mode {mode:o}", field="directory", value=volume.path)
        return f"{volume.path} has group {found.st_gid} and mode {mode:o}"

    async def _only_group_writes(self) -> str:
        volume = self._made(_DIRECTORY)
        source = self._cluster.folder / _FILE
        member, directory = self._way_to(volume, user=(_SOMEBODY, volume.gid or _SOMEBODY))
        other, _ = self._way_to(volume, user=(_SOMEBODY, _SOMEBODY))
        await member.write(source, directory, _FILE)
        try:
            await other.write(source, directory, "other.txt")
        except TunnelError as error:
            # Any other failure would prove nothing.
            if "ACCESS" not in str(error):
                raise
            return f"user {_SOMEBODY} with group {volume.gid} did, with group {_SOMEBODY} could not"
        raise TunnelError("is everybody's", field="directory", value=volume.path)

    async def _written(self) -> str:
        volume = self._made(_MOUNTED)
        point = volume.access_point_id

        async def missing() -> list[str]:
            unheld = "" if _holders(self.report, point) else f"no mount holds a tunnel of {point}"
            return [await self._pods.not_written(volume), unheld]

        await self._until(missing)
        return f"{self._pods.line!r} in {volume.file_system_id} {point}"

    async def _read(self) -> str:
        await self._until(self._pods.not_read)
        return "by a mount of its own" if kernel_has_nfs() else "in a directory bound where a mount would be"

    async def _share(self) -> str:
        volume = self._made(_MOUNTED)
        await self._pods.share(volume)
        await self._until(self._pods.not_read_through_share)
        return f"{volume.access_point_id} as claim {SHARED_CLAIM} in {SHARED_NAMESPACE}"

    async def _unshare(self) -> str:
        await self._pods.unshare()
        await self._until(self._pods.not_unshared)
        if not await self._pods.has_written(self._made(_MOUNTED)):
            raise NotYet("is gone", field="file", value=self._pods.file)
        return f"{SHARED_CLAIM}; the data is still there"

    async def _read_through_tunnel(self) -> str:
        tunnel = tunnel_of(self.report, self._made(_MOUNTED).access_point_id)
        if tunnel is None:
            raise NotYet("has no tunnel", field="claim", value=_MOUNTED)
        # The tunnel's certificate names the access point, so its directory is what is seen as the root.
        found = await TunnelClient(tunnel.port).read(Directory(), self._pods.file)
        if not found.decode().startswith(f"{self._pods.line}\n"):
            raise TunnelError("is not what was written", field=self._pods.file)
        return f"{self._pods.line!r} through 127.0.0.1:{tunnel.port}"

    async def _delete_pods(self) -> str:
        point = self._made(_MOUNTED).access_point_id
        await self._pods.delete()

        async def missing() -> list[str]:
            held = _holders(self.report, point)
            return [await self._pods.not_deleted(), f"{held} mounts hold a tunnel of {point}" if held else ""]

        await self._until(missing)
        return f"nobody holds the tunnel of {point} any more"

    async def _access_point_removed(self) -> str:
        volume = self._made(_MOUNTED)

        async def missing() -> list[str]:
            return [*self._phases(volume), await self._pods.not_removed(volume.access_point_id)]

        await self._until(missing)
        return f"{volume.access_point_id}, with its volume"

    async def _negotiate(self) -> str:
        for system in self.report.file_systems:
            file_system_id = FileSystemId(system.file_system_id)
            self.handshakes[file_system_id] = await self._shake_hands(system, file_system_id)
        first = next(iter(self.handshakes.values()))
        return f"{first.version}, {first.cipher}, {first.peer}"

    async def _refuse_other_peer(self) -> str:
        first, second = self.report.file_systems
        try:
            await self._shake_hands(first, FileSystemId(second.file_system_id))
        except TunnelError as error:
            # Any other failure would prove nothing.
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                return error.__cause__.verify_message
            raise
        raise TunnelError("passes for another file system", field=first.file_system_id)

    async def _shake_hands(self, system: FileSystemReport, expected: FileSystemId) -> Handshake:
        efs = self._cluster.efs
        name, _ = server_names(expected, efs.region)
        return await shake_hands(system.mount_targets[0].address, name, efs.ca_file)

    async def _delete_claims(self) -> str:
        for name in (*_VALID, _INVALID):
            with translated(f"claim {name}"):
                await self._cluster.client.delete(PersistentVolumeClaim, name, namespace="default")
        await self._until(self._claims_left)
        return ", ".join((*_VALID, _INVALID))

    async def _claims_left(self) -> list[str]:
        return [f"{claim.name} is still there" for claim in self.report.claims]

    async def _removed(self) -> str:
        gone = [self._made(name) for name in (_EXAMPLE, _CHOSEN, _DIRECTORY)]

        async def left() -> list[str]:
            return [told for volume in gone for told in self._phases(volume)]

        await self._until(left)
        for volume in gone:
            client, directory = self._way_to(volume)
            if directory.parts[-1] in await client.names(Directory(directory.parts[:-1])):
                raise TunnelError("is still there", field="directory", value=volume.path)
        return f"{', '.join(volume.path for volume in gone)}: no volume, no directory"

    async def _kept(self) -> str:
        volume = self._made(_KEPT)

        async def not_released() -> list[str]:
            told = self._phases(volume)
            return [] if told == [f"{volume.name} is Released"] else told or [f"{volume.name} is gone"]

        await self._until(not_released)
        client, directory = self._way_to(volume)
        if await client.read(directory, _FILE) != _TEXT.encode():
            raise TunnelError("has changed", field=f"{volume.path}/{_FILE}")
        return f"{volume.path}/{_FILE} is still there, its volume is Released"

    def _phases(self, volume: VolumeReport) -> list[str]:
        """The phase that the volume is in; nothing when it is gone."""
        return [f"{one.name} is {one.phase}" for one in self.report.volumes if one.name == volume.name]

    def _claim(self, name: str) -> ClaimReport:
        for claim in self.report.claims:
            if claim.name == name:
                return claim
        raise NotYet("is not there", field="claim", value=name)

    def _made(self, claim: str) -> VolumeReport:
        """The volume that the claim had when all were bound; raises NotYet when they never were."""
        if claim not in self._volumes:
            raise NotYet("never got a volume", field="claim", value=claim)
        return self._volumes[claim]

    def _way_to(
        self, volume: VolumeReport, *, user: tuple[int, int] | None = None
    ) -> tuple[TunnelClient, Directory]:
        """The volume's directory, and a client of its file system.

        A volume without a port names its server, which no resolver knows here: the tunnel leads there too.
        """
        ports = {system.file_system_id: system.port for system in self.report.file_systems}
        port = volume.port or ports[volume.file_system_id]
        return TunnelClient(port, user=user), parse_directory(volume.path)

    async def _until(self, missing: Callable[[], Awaitable[str | Sequence[str]]]) -> None:
        """Look at the cluster until nothing is missing; raises NotYet that says what still is."""
        deadline = time.monotonic() + _STEP_SECONDS
        while True:
            self.report = await read_cluster(self._cluster.client, NAMES)
            try:
                found = await missing()
            except NotYet as error:
                found = str(error)
            told = "; ".join(filter(None, [found] if isinstance(found, str) else found))
            if not told:
                return
            if time.monotonic() > deadline:
                raise NotYet(f"after {_STEP_SECONDS:.0f} s: {told}")
            await asyncio.sleep(_POLL_SECONDS)


def _describe(claim: ClaimReport) -> str:
    return f"{claim.name} is {claim.phase} ({claim.reason or 'no reason given'})"


def _holders(report: ClusterReport, access_point_id: str) -> int:
    tunnel = tunnel_of(report, access_point_id)
    return tunnel.holders if tunnel else 0


async def _checked(name: str, step: Callable[[], Awaitable[str]]) -> Check:
    try:
        return Check(name=name, ok=True, detail=await step())
    except (EfsError, KubeEfsError) as error:
        return Check(name=name, ok=False, detail=str(error))
