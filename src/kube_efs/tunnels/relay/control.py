"""The agent's side of the relay's control socket, which ``process`` describes."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import InvalidValue, RelayUnavailable, TunnelError
from kube_efs.tunnels.data_plane import CertificateFile, TunnelService
from kube_efs.tunnels.sockets.ports import port_taken_error

# A state with a thousand services has less than one MiB.
_ANSWER_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedService:
    """A service as the relay has it.

    ``connections`` are open now, ``connected`` had a handshake since the service was added. ``address`` to
    ``peer`` are of the last handshake. ``reason`` is why the last attempt or connection failed, empty after a
    handshake.
    """

    service: TunnelService
    connections: int
    connected: int
    sent_bytes: int
    received_bytes: int
    address: str
    tls_version: str
    cipher: str
    peer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayState:
    """The state of the relay; ``leaving`` after a successor took its listeners."""

    pid: int
    services: tuple[RelayedService, ...]
    leaving: bool


class RelayControl:
    """Calls of the relay at a socket; each takes at most ``timeout_seconds``, and raises RelayUnavailable.

    ``connect_timeout_seconds`` is for each address of a service, from the next ``add`` on.
    """

    def __init__(
        self, socket_path: Path, *, timeout_seconds: float = 5.0, connect_timeout_seconds: float = 2.0
    ) -> None:
        self._path = socket_path
        self._timeout_seconds = timeout_seconds
        self._connect_timeout_seconds = connect_timeout_seconds

    async def add(self, service: TunnelService) -> None:
        """Serve it, or change it: its connections stay. Raises PortTaken, InvalidValue or TunnelError."""
        if service.checks_revocation:
            raise InvalidValue(
                "cannot be checked by the kernel's data plane",
                field=f"{service.name}.ocsp",
                value=service.checks_revocation,
                remedy="serve it with stunnel, or mount without the option ocsp",
            )
        document = _document(service) | {"connect_timeout_seconds": self._connect_timeout_seconds}
        answer = await self._request({"command": "add", "service": document})
        if answer.get("error") == "port-taken":
            raise await asyncio.to_thread(port_taken_error, service.port)
        self._check(answer, service.name)

    async def remove(self, name: str) -> None:
        """Serve it no more; its connections stay until they end. An unknown name is ignored."""
        self._check(await self._request({"command": "remove", "name": name}), name)

    async def state(self) -> RelayState:
        """The current state."""
        answer = await self._request({"command": "state"})
        try:
            return RelayState(
                pid=answer["pid"],
                leaving=answer["leaving"],
                services=tuple(
                    RelayedService(**{**one, "service": _service(one["service"])})
                    for one in answer["services"]
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._unavailable("answered with something else than its state") from error

    async def _request(self, request: Mapping[str, object]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=_ANSWER_BYTES)
                try:
                    writer.write(json.dumps(request).encode() + b"\n")
                    await writer.drain()
                    line = await reader.readline()
                finally:
                    writer.close()
                    with suppress(OSError):
                        await writer.wait_closed()
            answer = json.loads(line)
        except TimeoutError as error:
            raise self._unavailable(f"did not answer in {self._timeout_seconds:g} s") from error
        except OSError as error:
            raise self._unavailable(f"cannot be reached ({error.strerror or error})") from error
        except ValueError as error:
            raise self._unavailable("did not answer with a line of JSON") from error
        if not isinstance(answer, dict):
            raise self._unavailable("did not answer with a JSON object")
        return answer

    def _check(self, answer: Mapping[str, Any], name: str) -> None:
        if "error" not in answer:
            return
        if answer["error"] == "invalid":
            raise InvalidValue(
                f"is refused by the relay ({answer.get('reason')})", field="service", value=name
            )
        if answer["error"] == "failed":
            raise TunnelError(
                f"cannot be served by the relay ({answer.get('reason')})", field="service", value=name
            )
        raise self._unavailable(f"did not do it ({answer.get('reason')})")

    def _unavailable(self, problem: str) -> RelayUnavailable:
        return RelayUnavailable(problem, field="relay", value=str(self._path))


def _document(service: TunnelService) -> dict[str, object]:
    certificate = service.certificate
    return {
        "name": service.name,
        "file_system_id": service.file_system_id,
        "port": service.port,
        "addresses": service.addresses,
        "check_host": service.check_host,
        "ca_file": str(service.ca_file),
        "certificate": certificate
        and {
            "path": str(certificate.path),
            "serial": certificate.serial,
            "not_after": certificate.not_after.isoformat(),
        },
    }


def _service(document: Mapping[str, Any]) -> TunnelService:
    certificate = document["certificate"]
    return TunnelService(
        name=document["name"],
        file_system_id=FileSystemId(document["file_system_id"]),
        port=document["port"],
        addresses=tuple(document["addresses"]),
        check_host=document["check_host"],
        ca_file=Path(document["ca_file"]),
        certificate=certificate
        and CertificateFile(
            path=Path(certificate["path"]),
            serial=certificate["serial"],
            not_after=datetime.fromisoformat(certificate["not_after"]),
        ),
    )
