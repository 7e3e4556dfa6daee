"""Which data plane the agent uses: from the setting, FIPS mode, and what this machine can do.

The choice is made once, at the start. ``auto`` never fails: it takes the kernel's data plane only if a test
of this machine shows both directions in the kernel. ``kernel`` never takes another one: an administrator who
relies on it must learn that it is missing.

FIPS mode requires stunnel. It is a promise about the cryptography of OpenSSL's FIPS provider; whether that of
a node's kernel is validated, the agent cannot know.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from kube_efs.model.errors import InvalidSetting
from kube_efs.settings.tunnel import DataPlaneSetting
from kube_efs.tunnels.data_plane import STUNNEL, DataPlaneChoice, DataPlaneName

# sun_path of unix(7) has 108 bytes, the last of which is 0.
_MOST_PATH_BYTES: Final = 107
_KERNEL: Final = DataPlaneChoice(name=DataPlaneName.KERNEL)


async def choose_data_plane(
    setting: DataPlaneSetting,
    *,
    fips_required_by: str,
    socket_path: Path,
    find_obstacle: Callable[[], Awaitable[str]],
) -> DataPlaneChoice:
    """The data plane for new tunnels; raises InvalidSetting for ``kernel`` if it cannot be used.

    ``fips_required_by`` is empty without FIPS mode. ``find_obstacle`` tests this machine, and is not called
    if something else decides.
    """
    if setting is DataPlaneSetting.STUNNEL:
        return STUNNEL
    if fips_required_by:
        obstacle = f"FIPS mode is required by {fips_required_by}, and only stunnel has it"
        remedy = "use stunnel or auto"
    elif len(os.fsencode(socket_path)) > _MOST_PATH_BYTES:
        obstacle = f"the path of its socket, {socket_path}, has more than {_MOST_PATH_BYTES} bytes"
        remedy = "choose a shorter STUNNEL_CONF_PATH, or use stunnel or auto"
    else:
        obstacle = await find_obstacle()
        remedy = "load the kernel module tls on the node (modprobe tls), or use stunnel or auto"
    if not obstacle:
        return _KERNEL
    if setting is DataPlaneSetting.KERNEL:
        raise InvalidSetting(
            f"cannot be used ({obstacle})", field="KUBE_EFS_DATA_PLANE", value=str(setting), remedy=remedy
        )
    return DataPlaneChoice(name=DataPlaneName.STUNNEL, reason=obstacle)
