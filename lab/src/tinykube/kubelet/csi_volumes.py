"""Volumes of CSI drivers, published where the kubelet of Kubernetes has them published.

As pkg/volume/csi: ``volumes/kubernetes.io~csi/NAME/mount``, and beside it ``vol_data.json``, by which a later
kubelet knows whom to ask for the end. Volumes are not staged, and files are not given to the pod's group.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from tinykube.client.calls import ERRORS
from tinykube.errors import InvalidValue
from tinykube.kubelet.drivers import Driver, Drivers
from tinykube.kubelet.host_folders import HostFolders
from tinykube.kubelet.nfs import detach, mount_points
from tinykube.kubelet.plugins import PluginCalls, PublishRequest
from tinykube.kubelet.pods import Csi, Pod
from tinykube.kubelet.volume_makers import PodObjects

log = structlog.get_logger(__name__)

_FOLDER = "kubernetes.io~csi"
_NOTE = "vol_data.json"
_FIRST_BACK_OFF_SECONDS = 0.2
_LAST_BACK_OFF_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    """What the note beside a target says."""

    driver: str
    handle: str
    target: Path


class CsiVolumes:
    """Has volumes published and unpublished by the drivers of this node."""

    def __init__(self, cluster: PodObjects, calls: PluginCalls, drivers: Drivers, host: HostFolders) -> None:
        self._cluster = cluster
        self._calls = calls
        self._drivers = drivers
        self._host = host
        self._locks: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def publish(self, pod: Pod, volume: Csi, directory: Path, *, read_only: bool) -> Path:
        """The mounted volume, below the directory of the pod's volumes; raises NotYet and InvalidValue."""
        place = directory / _FOLDER / volume.volume.replace("/", "~")
        target = place / "mount"
        # Two volumes of a pod may be the same claim.
        async with self._locks[target]:
            if str(target) not in await asyncio.to_thread(mount_points):
                driver = self._drivers.get(volume.driver)
                context = {**volume.attributes, **await self._about(pod, volume)}
                await asyncio.to_thread(_write_note, place, pod.node, volume)
                path = self._host.there(target)
                request = publish_request(driver, volume, path, context, read_only=read_only)
                await self._calls.publish(driver.socket, request)
        return target

    async def unpublish_all(self, directory: Path) -> None:
        """End what is published below the directory of a pod's volumes, however long the drivers take.

        When cancelled, what is still mounted is taken away without them.
        """
        for published in await asyncio.to_thread(_read_notes, directory):
            pause = _FIRST_BACK_OFF_SECONDS
            try:
                while not await self._unpublished(published):
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LAST_BACK_OFF_SECONDS)
            except asyncio.CancelledError:
                await detach(published.target)
                raise
            self._locks.pop(published.target, None)

    async def _unpublished(self, published: _Published) -> bool:
        try:
            socket = self._drivers.get(published.driver).socket
            await self._calls.unpublish(socket, published.handle, self._host.there(published.target))
        except ERRORS as error:
            log.warning("volume-not-unpublished", target=str(published.target), reason=str(error))
            return False
        await asyncio.to_thread(_remove_note, published.target.parent)
        return True

    async def _about(self, pod: Pod, volume: Csi) -> Mapping[str, str]:
        """What the driver wants to be told of the pod."""
        terms = await self._cluster.driver_terms(volume.driver)
        if terms.attaches:
            raise InvalidValue(
                "wants its volumes to be attached, which nobody does here; "
                "make a CSIDriver of this name with attachRequired: false",
                field="CSIDriver",
                value=volume.driver,
            )
        if not terms.wants_pod:
            return {}
        return {
            "csi.storage.k8s.io/pod.name": pod.name,
            "csi.storage.k8s.io/pod.namespace": pod.namespace,
            "csi.storage.k8s.io/pod.uid": pod.uid,
            "csi.storage.k8s.io/serviceAccount.name": pod.service_account,
            "csi.storage.k8s.io/ephemeral": "false",
        }


def publish_request(
    driver: Driver, volume: Csi, target: str, context: Mapping[str, str], *, read_only: bool
) -> PublishRequest:
    """The call for a volume that is mounted there."""
    return PublishRequest(
        handle=volume.handle,
        target=target,
        access_mode=_access_mode(volume, knows_single_writers=driver.node.knows_single_writers),
        fs_type=volume.fs_type,
        options=volume.options,
        context=context,
        read_only=read_only,
    )


def _access_mode(volume: Csi, *, knows_single_writers: bool) -> str:
    """The protocol's word for the first access mode of a volume."""
    modes = {"ReadOnlyMany": "MULTI_NODE_READER_ONLY", "ReadWriteMany": "MULTI_NODE_MULTI_WRITER"}
    if knows_single_writers:
        modes |= {
            "ReadWriteOnce": "SINGLE_NODE_MULTI_WRITER",
            "ReadWriteOncePod": "SINGLE_NODE_SINGLE_WRITER",
        }
    return modes.get(volume.access_mode, "SINGLE_NODE_WRITER")


def _write_note(place: Path, node: str, volume: Csi) -> None:
    place.mkdir(0o750, parents=True, exist_ok=True)
    note = {
        "driverName": volume.driver,
        "nodeName": node,
        "specVolID": volume.volume,
        "volumeHandle": volume.handle,
        "volumeLifecycleMode": "Persistent",
    }
    (place / _NOTE).write_text(json.dumps(note), encoding="utf-8")


def _read_notes(directory: Path) -> list[_Published]:
    found = []
    for path in sorted((directory / _FOLDER).glob(f"*/{_NOTE}")):
        note = json.loads(path.read_text(encoding="utf-8"))
        target = path.parent / "mount"
        found.append(_Published(driver=note["driverName"], handle=note["volumeHandle"], target=target))
    return found


def _remove_note(place: Path) -> None:
    (place / _NOTE).unlink(missing_ok=True)
