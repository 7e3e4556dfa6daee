"""Settings of tunnels on demand for tests: no AWS account, free ports, and short timeouts."""

import os
import socket as sockets
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kube_efs.aws.credential_sources import CredentialOptions, ProfileFiles
from kube_efs.model.efs.ids import Region
from kube_efs.tunnels.options import ClientInfo, OnDemandOptions
from kube_efs.tunnels.reservations import PortRange
from kube_efs.tunnels.sockets.detection import IdlePolicy

NOWHERE = Path("/nowhere")
# Where neither the kernel looks for the ports of connections, nor embedded clusters for their blocks: a block
# is marked by a port that is bound, which stunnel then cannot have. Programs of a test inherit the variable.
FIRST_PORTS: Final = range(23100, 25900, 100)
_FIRST_PORT: Final = "KUBE_EFS_TEST_FIRST_PORT"
_reserved: Final[list[sockets.socket]] = []


def on_demand_options(
    socket: Path,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    files: ProfileFiles | None = None,
    idle: IdlePolicy | None = None,
) -> OnDemandOptions:
    """Options with a hundred ports that no other process of tests on this machine has."""
    first = int(os.environ.get(_FIRST_PORT) or _reserve_ports())
    return OnDemandOptions(
        socket_path=socket,
        node="node-1",
        credentials=CredentialOptions(
            region=Region("us-east-1"),
            files=files or ProfileFiles(credentials=NOWHERE, config=NOWHERE),
            environment=environment,
            metadata_endpoint="http://127.0.0.1:9",
            timeout_seconds=2,
        ),
        client_info=ClientInfo.of("k8s", "0.1.0"),
        ports=PortRange(first=first, last=first + 99),
        idle=idle or IdlePolicy(seconds=0.5, readings=3),
        ensure_timeout_seconds=60,
        orphan_seconds=0.3,
    )


def _reserve_ports() -> str:
    """The first of a hundred ports, which this process has until its end."""
    for first in map(str, FIRST_PORTS):
        reservation = sockets.socket(sockets.AF_UNIX)
        try:
            # A name without a file, which the kernel forgets with the process.
            reservation.bind(f"\0kube-efs-test-ports-{first}")
        except OSError:
            reservation.close()
            continue
        _reserved.append(reservation)
        os.environ[_FIRST_PORT] = first
        return first
    raise RuntimeError("no ports are left for another process of tests")
