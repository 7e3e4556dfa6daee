"""Which data plane the agent uses."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from kube_efs.model.errors import InvalidSetting
from kube_efs.settings.tunnel import DataPlaneSetting
from kube_efs.tunnels.data_plane import DataPlaneChoice, DataPlaneName
from kube_efs.tunnels.data_plane_choice import choose_data_plane

SOCKET = Path("/tmp/stunnel.relay.sock")
TOO_LONG = Path("/" + "a" * 107)
NO_MODULE = "the kernel has no TLS"


@dataclass(frozen=True)
class Machine:
    fips: str = ""
    path: Path = SOCKET
    obstacle: str = ""


async def choose(setting: DataPlaneSetting, machine: Machine) -> DataPlaneChoice:
    async def find_obstacle() -> str:
        return machine.obstacle

    return await choose_data_plane(
        setting, fips_required_by=machine.fips, socket_path=machine.path, find_obstacle=find_obstacle
    )


@pytest.mark.parametrize("setting", [DataPlaneSetting.AUTO, DataPlaneSetting.KERNEL])
async def test_kernel_is_chosen_if_it_can_encrypt_both_directions(setting: DataPlaneSetting) -> None:
    assert await choose(setting, Machine()) == DataPlaneChoice(name=DataPlaneName.KERNEL)


async def test_stunnel_is_chosen_without_a_test_of_the_machine() -> None:
    async def find_obstacle() -> str:
        pytest.fail("a node with stunnel starts no other process")

    found = await choose_data_plane(
        DataPlaneSetting.STUNNEL, fips_required_by="", socket_path=TOO_LONG, find_obstacle=find_obstacle
    )
    assert found == DataPlaneChoice(name=DataPlaneName.STUNNEL)


OBSTACLES = [
    pytest.param(
        Machine(obstacle=NO_MODULE), NO_MODULE, "load the kernel module tls on the node", id="kernel"
    ),
    pytest.param(
        Machine(path=TOO_LONG), "has more than 107 bytes", "choose a shorter STUNNEL_CONF_PATH", id="path"
    ),
    pytest.param(
        Machine(fips="FIPS_ENABLED"),
        "FIPS mode is required by FIPS_ENABLED",
        "use stunnel or auto",
        id="FIPS mode",
    ),
]


@pytest.mark.parametrize(("machine", "reason", "remedy"), OBSTACLES)
async def test_auto_chooses_stunnel_and_gives_the_reason(machine: Machine, reason: str, remedy: str) -> None:
    del remedy
    found = await choose(DataPlaneSetting.AUTO, machine)
    assert found.name is DataPlaneName.STUNNEL
    assert reason in found.reason


@pytest.mark.parametrize(("machine", "reason", "remedy"), OBSTACLES)
async def test_kernel_is_refused_instead_of_replaced(machine: Machine, reason: str, remedy: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        await choose(DataPlaneSetting.KERNEL, machine)
    assert (caught.value.field, caught.value.value) == ("KUBE_EFS_DATA_PLANE", "kernel")
    assert reason in str(caught.value)
    assert remedy in caught.value.remedy
