"""Settings of tunnels on demand for tests: no AWS account, free ports, and short timeouts."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kube_efs.aws.credential_sources import CredentialOptions, ProfileFiles
from kube_efs.model.efs.ids import Region
from kube_efs.tunnels.options import ClientInfo, OnDemandOptions
from kube_efs.tunnels.reservations import PortRange
from kube_efs.tunnels.sockets.detection import IdlePolicy

NOWHERE = Path("/nowhere")


def on_demand_options(
    socket: Path,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    files: ProfileFiles | None = None,
    idle: IdlePolicy | None = None,
) -> OnDemandOptions:
    """Options with ports that depend on the process, so that test runs do not conflict."""
    run = int(os.environ.setdefault("KUBE_EFS_TEST_RUN", str(os.getpid())))
    first = 23100 + run % 40 * 100
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
        ensure_timeout_seconds=20,
        orphan_seconds=0.3,
    )
