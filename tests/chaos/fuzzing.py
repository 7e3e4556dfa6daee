"""Invalid calls to the sockets of the driver, the agent and the controller.

Requests are filled field by field from the descriptors of the protocol: usually with valid values, else with
hostile ones. They are sent once, several times concurrently, with a short deadline, truncated, or as garbage.
If the outcome of a call is unknown, the caller repeats it as the CSI specification requires. After that,
nothing may be left.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tests.chaos.asking import CHANNEL_OPTIONS, persistently
from tests.chaos.planting import places_in, planted

from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.tunnels.protocol import tunnels_pb2 as tunnels

_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.05
_CALLERS: Final = 3
_HUGE: Final = 200_000
_UNEXPECTED: Final = "an error that should not happen"
# What gRPC itself answers to garbage, with the code UNKNOWN.
_GARBAGE: Final = "Error parsing message"
# A caller that says that these are all the holders is believed: that is what the call is for.
_LEFT_OUT: Final = frozenset({"Reconcile"})
_HOSTILE: Final = (
    "",
    " ",
    "\n[evil]\nconnect = 127.0.0.1:22\n",
    "a\x00b",
    "../../../etc/passwd",
    "/",
    "//",
    "relative/path",
    "$(reboot)",
    "; reboot #",
    "%s%n",
    "fs-0123456789abcdef0:/../..::fsap-0123456789abcdef0",
    "fs-0123456789abcdef0::fsap-0123456789abcdef0",
    "fs-00000000",
    "a,b=c,port=22,rw",
    "\u202e\u0000\ufeff",
    "\U0001f4a3" * 50,
    "-1",
    "99999999999999999999",
    "true",
)
# Codes after which the caller knows that nothing was done; after any other he undoes it.
_REFUSED: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """The addresses of the services."""

    driver: Path
    agent: Path
    controller: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The existing objects, as valid values for fields of requests.

    ``kept`` are the targets of volumes that are never unpublished; ``handles`` are all volumes.
    """

    handles: Sequence[str]
    file_systems: Sequence[str]
    zones: Sequence[str]
    kept: Sequence[Path]
    targets: Path


@dataclass(frozen=True, slots=True)
class _Method:
    path: str
    request: Descriptor

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class _Debts:
    """The possible effects of calls, to be undone."""

    publications: set[tuple[str, str]] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    volumes: set[str] = field(default_factory=set)


class Fuzzer:
    """``answers`` counts the outcomes of calls; ``failures`` lists the unexpected ones."""

    def __init__(self, sockets: Sockets, known: Known, chance: random.Random) -> None:
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._sockets = sockets
        self._chance = chance
        self._requests = _Requests(known, chance)
        self._debts = _Debts()

    async def run(self, seconds: float) -> None:
        """Send calls for that time."""
        ends = time.monotonic() + seconds
        services = (
            (self._sockets.driver, csi, ("Node", "Identity")),
            (self._sockets.controller, csi, ("Controller", "Identity")),
            (self._sockets.agent, tunnels, ("Tunnels",)),
        )
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as callers:
            for socket, protocol, names in services:
                channel = await stack.enter_async_context(_channel(socket))
                methods = [
                    _Method(f"/{one.full_name}/{method.name}", method.input_type)
                    for name in names
                    for one in [protocol.DESCRIPTOR.services_by_name[name]]
                    for method in one.methods
                    if method.name not in _LEFT_OUT
                ]
                for _ in range(_CALLERS):
                    callers.create_task(self._call_until(ends, channel, methods))

    async def settle(self) -> None:
        """Undo the possible effects of calls, as kubelet and csi-provisioner do."""
        async with _channel(self._sockets.driver) as driver, _channel(self._sockets.agent) as agent:
            for volume_id, target in sorted(self._debts.publications):
                unpublish = csi.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=target)
                await _finally(driver, "/csi.v1.Node/NodeUnpublishVolume", unpublish)
            for holder in sorted(self._debts.holders):
                release = tunnels.ReleaseRequest(holder=holder)
                await _finally(agent, "/kube_efs.tunnels.v1.Tunnels/Release", release)
        async with _channel(self._sockets.controller) as controller:
            for name in sorted(self._debts.volumes):
                # The caller of one that was cut off asks again with the same name until he knows its handle.
                answer = await _finally(
                    controller, "/csi.v1.Controller/CreateVolume", self._requests.plain(name)
                )
                if answer is not None:
                    handle = csi.CreateVolumeResponse.FromString(answer).volume.volume_id
                    delete = csi.DeleteVolumeRequest(volume_id=handle)
                    await _finally(controller, "/csi.v1.Controller/DeleteVolume", delete)

    async def _call_until(self, ends: float, channel: grpc.aio.Channel, methods: Sequence[_Method]) -> None:
        while time.monotonic() < ends:
            method = self._chance.choice(methods)
            request = self._requests.fill(method.name, GetMessageClass(method.request)())
            garbage = self._chance.random() < 0.02
            raw = self._chance.randbytes(64) if garbage else request.SerializeToString()
            calls = [
                self._call(channel, method, raw, request) for _ in range(self._chance.choice((1, 1, 1, 2, 3)))
            ]
            codes = await asyncio.gather(*calls)
            if set(codes) == {grpc.StatusCode.UNAVAILABLE}:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _call(
        self, channel: grpc.aio.Channel, method: _Method, raw: bytes, request: Message
    ) -> grpc.StatusCode:
        code, details = grpc.StatusCode.OK, ""
        seconds = self._chance.choice((_SECONDS, _SECONDS, _SECONDS, 0.5, 0.01))
        call = _ask(channel, method.path, raw, seconds)
        if self._chance.random() < 0.1:
            asyncio.get_running_loop().call_later(self._chance.random() * 0.3, call.cancel)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            code = grpc.StatusCode.CANCELLED
        self._judge(method, code, details)
        if code not in _REFUSED:
            self._owe(method.name, request)
        return code

    def _judge(self, method: _Method, code: grpc.StatusCode, details: str) -> None:
        self.answers[code.name] += 1
        if _UNEXPECTED in details or (code is grpc.StatusCode.UNKNOWN and _GARBAGE not in details):
            self.failures.append(f"{method.path}: {code.name} {details[:300]}")
        if shown := places_in(details):
            self.failures.append(f"{method.path}: {code.name} shows secrets: {dict(shown)}")

    def _owe(self, name: str, request: Message) -> None:
        match request:
            case csi.NodePublishVolumeRequest(volume_id=volume, target_path=target):
                if not self._requests.is_kept(volume, target):
                    self._debts.publications.add((volume, target))
            case tunnels.EnsureRequest(holder=holder):
                self._debts.holders.add(holder)
            case csi.CreateVolumeRequest(name=volume):
                self._debts.volumes.add(volume)


class _Requests:
    """Fills requests."""

    def __init__(self, known: Known, chance: random.Random) -> None:
        self._known = known
        self._chance = chance
        own = known.targets / "fuzzed"
        self._targets = [str(own / str(number)) for number in range(12)]
        self._wrong = [str(own / one) for one in ("file", "link/below", "full")]
        self._texts: Mapping[str, Callable[[], str]] = {
            "volume_id": lambda: chance.choice(known.handles),
            "target_path": lambda: chance.choice([*self._targets, *self._wrong]),
            "volume_path": lambda: chance.choice([*self._targets, *self._wrong, *map(str, known.kept)]),
            "name": lambda: f"fuzzed-{chance.randrange(20)}",
            "holder": lambda: f"fuzzed {chance.randrange(20)}",
            "file_system_id": lambda: chance.choice(known.file_systems),
            "access_point_id": lambda: chance.choice(known.handles).rpartition("::")[2],
            "zone": lambda: chance.choice(known.zones),
            "address": lambda: "127.0.0.9",
            "mount_flags": lambda: chance.choice(
                (
                    "tls",
                    "ro",
                    "noresvport",
                    "nconnect=2",
                    "az=us-east-1a",
                    f"password={planted('mount-flag')}",
                )
            ),
            "fs_type": lambda: "efs",
        }
        self._maps: Mapping[str, Callable[[], tuple[str, str]]] = {
            "secrets": lambda: ("phrase", planted("call-secret")),
            "volume_context": lambda: chance.choice(
                (
                    ("encryptInTransit", "true"),
                    ("csi.storage.k8s.io/serviceAccount.tokens", planted("call-token")),
                    ("password", planted("attribute")),
                )
            ),
            "parameters": lambda: chance.choice(
                (
                    ("uid", "1000"),
                    ("gid", "1000"),
                    ("basePath", "/fuzzed"),
                    ("password", planted("parameter")),
                )
            ),
        }

    def plain(self, name: str) -> csi.CreateVolumeRequest:
        """A valid volume."""
        return csi.CreateVolumeRequest(
            name=name,
            capacity_range=csi.CapacityRange(required_bytes=1),
            volume_capabilities=[_capability()],
            parameters={
                "provisioningMode": "efs-ap",
                "fileSystemId": self._known.file_systems[0],
                "directoryPerms": "700",
            },
        )

    def is_kept(self, volume_id: str, target: str) -> bool:
        """Whether that is the target of a volume that stays published."""
        return Path(target) in self._known.kept

    def fill(self, method: str, request: Message) -> Message:
        """Fill the fields of a request."""
        if isinstance(request, csi.CreateVolumeRequest) and self._chance.random() < 0.5:
            request.CopyFrom(self.plain(f"fuzzed-{self._chance.randrange(20)}"))
            return request
        self._fill(request)
        match request:
            case csi.NodePublishVolumeRequest():
                if self._chance.random() < 0.6:
                    request.volume_capability.CopyFrom(_capability())
                    request.ClearField("volume_context")
                if self._chance.random() < 0.1:  # another volume is published there
                    request.target_path = str(self._chance.choice(self._known.kept))
                    request.volume_id = "fs-0123456789abcdef0::fsap-0123456789abcdef0"
            case csi.DeleteVolumeRequest():
                # Of a volume that stays, it would do what it is asked for.
                request.volume_id = self._hostile()
        return request

    def _fill(self, message: Message) -> None:
        for one in message.DESCRIPTOR.fields:
            if self._chance.random() < 0.8:
                self._fill_field(message, one)

    def _fill_field(self, message: Message, one: Any) -> None:
        value = getattr(message, one.name)
        if one.message_type and one.message_type.GetOptions().map_entry:
            for key, text in (self._entry(one.name) for _ in range(self._chance.randrange(3))):
                value[key] = text
        elif one.message_type and one.is_repeated:
            self._fill(value.add())
        elif one.message_type:
            value.SetInParent()
            self._fill(value)
        elif one.is_repeated:
            value.extend(self._scalar(one) for _ in range(self._chance.randrange(3)))
        else:
            setattr(message, one.name, self._scalar(one))

    def _entry(self, name: str) -> tuple[str, str]:
        if name in self._maps and self._chance.random() < 0.8:
            return self._maps[name]()
        return self._hostile(), self._hostile()

    def _scalar(self, one: Any) -> Any:
        if one.enum_type:
            return self._chance.choice(one.enum_type.values).number
        if one.type == FieldDescriptor.TYPE_STRING:
            good = self._texts.get(one.name)
            return good() if good and self._chance.random() < 0.8 else self._hostile()
        if one.type == FieldDescriptor.TYPE_BOOL:
            return self._chance.random() < 0.5
        return self._chance.choice((0, 1, 2**31 - 1))

    def _hostile(self) -> str:
        if self._chance.random() < 0.01:
            return "x" * _HUGE
        return self._chance.choice(_HOSTILE)


def _capability() -> csi.VolumeCapability:
    modes = csi.VolumeCapability.AccessMode
    return csi.VolumeCapability(
        mount=csi.VolumeCapability.MountVolume(), access_mode=modes(mode=modes.MULTI_NODE_MULTI_WRITER)
    )


async def _finally(channel: grpc.aio.Channel, path: str, request: Message) -> bytes | None:
    """Repeat a call until it is answered; None if the request is refused."""

    async def ask() -> bytes | None:
        try:
            answer = await _ask(channel, path, request.SerializeToString(), _SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSED:
                return None
            raise
        return answer

    return await persistently(ask)


def _ask(
    channel: grpc.aio.Channel, path: str, request: bytes, seconds: float
) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    return method(request, timeout=seconds)


@asynccontextmanager
async def _channel(socket: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}", options=CHANNEL_OPTIONS) as channel:
        yield channel


def make_wrong_targets(targets: Path) -> frozenset[Path]:
    """Create invalid targets of mounts: a file, a link to a directory, a directory with content."""
    own = targets / "fuzzed"
    (own / "full").mkdir(parents=True)
    (own / "full" / "file").write_text("somebody's")
    (own / "file").write_text("somebody's")
    (own / "elsewhere").mkdir()
    (own / "link").symlink_to(own / "elsewhere")
    return frozenset(own.rglob("*"))
