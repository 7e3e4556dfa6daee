"""Calls to plugins on sockets of this machine, with errors as the kubelet words them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import quote

import grpc
import grpc.aio

from kube_efs.model.errors import NotYet

# What pkg/volume/csi allows a call that mounts or unmounts.
MOUNT_SECONDS = 120.0
ANSWER_SECONDS = 10.0


@asynccontextmanager
async def connected(socket: Path) -> AsyncIterator[grpc.aio.Channel]:
    """A way to what serves there; whether anybody does is found by calling. Calls raise NotYet."""
    async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}") as channel:
        with _worded():
            yield channel


@contextmanager
def _worded() -> Iterator[None]:
    """Errors in the words of Go's gRPC, which people look for."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        code = error.code().name.title().replace("_", "")
        raise NotYet(f"rpc error: code = {code} desc = {error.details()}") from error
