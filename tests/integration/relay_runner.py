"""The relay in its own process, and a service for it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.integration.tunnel_node import FS, host_of

from kube_efs.model.errors import RelayUnavailable
from kube_efs.tunnels.data_plane import CertificateFile, TunnelService
from kube_efs.tunnels.relay.control import RelayControl
from tinykube.ports import free_port

DEADLINE_SECONDS = 60.0
COMMAND = (sys.executable, "-I", "-m", "kube_efs.tunnels.relay.process")


def service_of(
    *addresses: str,
    ca_file: Path = Path("/dev/null"),
    name: str = FS,
    port: int | None = None,
    certificate: CertificateFile | None = None,
) -> TunnelService:
    return TunnelService(
        name=name,
        file_system_id=FS,
        port=port or free_port(),
        addresses=addresses,
        check_host=host_of(FS),
        ca_file=ca_file,
        certificate=certificate,
    )


@asynccontextmanager
async def relay_process(path: Path, *, files: int = 4096) -> AsyncIterator[asyncio.subprocess.Process]:
    """A relay that serves the path; ``files`` is its limit of open files. It is killed if it still runs."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", 'ulimit -n "$0" && exec "$@"', str(files), *COMMAND, str(path)
    )
    try:
        await serving(path, process)
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def serving(path: Path, process: asyncio.subprocess.Process) -> None:
    """Wait until this process answers at the path."""
    control = RelayControl(path)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while process.returncode is None:
            with suppress(RelayUnavailable):
                if (await control.state()).pid == process.pid:
                    return
            await asyncio.sleep(0.01)
    raise AssertionError(f"the relay ended with status {process.returncode}")
