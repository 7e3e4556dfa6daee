"""Where the data of volumes with access points lies, for whoever measures it."""

import time
from collections.abc import Callable
from typing import Final

import structlog

from kube_efs.model.csi_claims import DRIVER
from kube_efs.model.errors import AwsError, KubeEfsError
from kube_efs.model.ids import FileSystemId
from kube_efs.model.volume_handles import parse_volume_handle
from kube_efs.model.volumes import Location, Volume
from kube_efs.provisioning.backends.csi.accounts import Accounts

log = structlog.get_logger(__name__)

# What AWS refuses for one volume of a file system it refuses for all of them.
_AGAIN_SECONDS: Final = 60.0


class AccessPointPlaces:
    """The directories of this account's access points; a file system's are listed once."""

    def __init__(self, accounts: Accounts, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._accounts = accounts
        self._clock = clock
        self._failed_at: dict[FileSystemId, float] = {}

    async def locate(self, volume: Volume) -> Location | None:
        """Where the volume's data lies, if its access point is of this account and that can be told."""
        if volume.csi is None or volume.csi.driver != DRIVER or volume.deletion_secret:
            return None
        try:
            handle = parse_volume_handle(volume.csi.handle)
        except KubeEfsError:
            return None
        failed_at = self._failed_at.get(handle.file_system_id)
        if failed_at is not None and self._clock() - failed_at < _AGAIN_SECONDS:
            return None
        account = await self._accounts.of(None)
        try:
            return await account.access_points.location(handle)
        except AwsError as error:
            self._failed_at[handle.file_system_id] = self._clock()
            log.warning("access-points-not-read", file_system=handle.file_system_id, reason=str(error))
            return None
