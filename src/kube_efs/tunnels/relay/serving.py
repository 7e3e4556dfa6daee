"""The services of the relay: their listeners, their connections and their counters.

One thread accepts the connections of all services. Each connection then has a thread that connects to the
mount target, so a slow one delays nobody else, and after that the two threads of ``splicing``.

There are two locks. That of ``Acceptor`` is held while a connection is accepted and counted; that of
``Relay`` protects the counters, and is taken inside of the first one. So ``Acceptor.remove`` must not be
called with the lock of the relay, or the two threads wait for each other. ``process`` allows one change of
the services at a time, and this module does not protect them.
"""

import errno
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from kube_efs.tunnels.relay.mount_target import ConnectFailed, Destination, Established, connect, load_context
from kube_efs.tunnels.relay.splicing import Splicing, reset

_LOOPBACK = "127.0.0.1"
_PORTS = range(1024, 65536)
_MOST_SECONDS = 3600
_PAUSE_SECONDS = 0.1


class Refused(Exception):
    """A request that is not carried out; ``kind`` is for the agent, the text for people."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Specification(NamedTuple):
    """A service as the agent wants it. ``document`` is the agent's text for it, which the state repeats."""

    name: str
    port: int
    destination: Destination
    document: Mapping[str, Any]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> "Specification":
        """The specification; raises Refused if a value has the wrong type or size.

        The agent has checked the meaning of the values. Here they only must do no harm.
        """
        match document:
            case {
                "name": str(name),
                "port": int(port),
                "addresses": [*addresses],
                "check_host": str(check_host),
                "ca_file": str(ca_file),
                "certificate": None | {"path": str()} as certificate,
                "connect_timeout_seconds": int() | float() as timeout,
            } if (
                name
                and port in _PORTS
                and addresses
                and all(isinstance(address, str) and address for address in addresses)
                and 0 < timeout <= _MOST_SECONDS
            ):
                destination = Destination(
                    addresses=tuple(addresses),
                    check_host=check_host,
                    ca_file=ca_file,
                    certificate=certificate["path"] if certificate else None,
                    connect_timeout_seconds=timeout,
                )
                return cls(name=name, port=port, destination=destination, document=document)
        raise Refused("invalid", "the description of the service is not valid")


class Service:
    """A service that listens.

    The lock of the relay protects the connections and counters. A new ``specification`` replaces the old one
    as a whole; a connection reads it once.
    """

    def __init__(self, specification: Specification, listener: socket.socket) -> None:
        self.specification = specification
        self.listener = listener
        self.open: set[Splicing] = set()
        self.problem = ""
        self._connected = self._sent_bytes = self._received_bytes = 0
        self._address = self._tls_version = self._cipher = self._peer = self._reason = ""

    @classmethod
    def resume(cls, state: Mapping[str, Any], listener: socket.socket) -> "Service":
        """The service of another relay, which counts on where that one stopped."""
        service = cls(Specification.parse(state["service"]), listener)
        service._connected = int(state["connected"])
        service._sent_bytes = int(state["sent_bytes"])
        service._received_bytes = int(state["received_bytes"])
        return service

    def began(self, established: Established, splicing: Splicing) -> None:
        """Note a successful handshake."""
        self.open.add(splicing)
        self._connected += 1
        self._address, self._tls_version = established.address, established.tls_version
        self._cipher, self._peer, self._reason = established.cipher, established.peer, ""

    def failed(self, reason: str) -> None:
        """Note why there was no connection, or why it has ended."""
        self._reason = reason

    def ended(self, splicing: Splicing) -> None:
        """Note the end of a connection."""
        self.open.discard(splicing)
        self._sent_bytes += splicing.sent_bytes
        self._received_bytes += splicing.received_bytes

    def state(self) -> dict[str, object]:
        """The values of ``control.RelayedService``."""
        return {
            "service": self.specification.document,
            "connections": len(self.open),
            "connected": self._connected,
            "sent_bytes": self._sent_bytes + sum(one.sent_bytes for one in self.open),
            "received_bytes": self._received_bytes + sum(one.received_bytes for one in self.open),
            "address": self._address,
            "tls_version": self._tls_version,
            "cipher": self._cipher,
            "peer": self._peer,
            "reason": self._reason,
        }


class Acceptor:
    """Accepts connections of any number of listeners, at most ``most`` open ones at a time.

    With so many, it waits for ``release``. Clients wait in the queues of the listeners meanwhile.
    """

    def __init__(self, most: int) -> None:
        self._room = threading.BoundedSemaphore(most)
        self._epoll = select.epoll()
        self._listeners: dict[int, tuple[socket.socket, Callable[[socket.socket], None]]] = {}
        # Held while a connection is accepted and handled, so that after a removal none is on its way.
        self._lock = threading.Lock()

    def add(self, listener: socket.socket, handle: Callable[[socket.socket], None]) -> None:
        """Accept its connections. Each call of ``handle`` must lead to one of ``release``."""
        # A successor may have accepted the connection that woke this process.
        listener.setblocking(False)
        self._listeners[listener.fileno()] = listener, handle
        self._epoll.register(listener, select.EPOLLIN)

    def remove(self, listener: socket.socket) -> None:
        """Accept no more of its connections, and close it here."""
        with self._lock:
            # Closing alone would not do: while a successor has the listener, epoll would report it.
            self._epoll.unregister(listener)
            del self._listeners[listener.fileno()]
            listener.close()

    def release(self) -> None:
        """A connection has ended."""
        self._room.release()

    def run(self) -> None:
        """Accept until the process ends."""
        while True:
            for number, _ in self._epoll.poll():
                # Without the lock: it may take hours until a connection ends, and ``remove`` must not wait.
                self._room.acquire()
                if not self._accept(number):
                    self._room.release()

    def _accept(self, number: int) -> bool:
        """Whether there was a connection at the listener with this descriptor."""
        try:
            with self._lock:
                if number not in self._listeners:
                    return False
                listener, handle = self._listeners[number]
                handle(listener.accept()[0])
                return True
        except BlockingIOError:  # a successor has accepted it
            return False
        except OSError:
            # The listener stays ready, so without a pause this would spin.
            time.sleep(_PAUSE_SECONDS)
            return False


class Relay:
    """All services: at most ``most``, with at most as many connections.

    ``on_drained`` is called when the last connection has ended after ``leave``.
    """

    def __init__(self, most: int, on_drained: Callable[[], None]) -> None:
        self.acceptor = Acceptor(most)
        self.is_leaving = False
        self._most = most
        self._on_drained = on_drained
        self._services: dict[str, Service] = {}
        self._connections = 0
        self._open: set[Splicing] = set()  # also those of removed services
        self._lock = threading.Lock()

    def add(self, document: Mapping[str, Any]) -> None:
        """Listen for a service, or change it; raises Refused.

        Connections stay. If the port is the same, the listener and the counters stay, too.
        """
        specification = Specification.parse(document)
        known = self._services.get(specification.name)
        if known and known.specification.port == specification.port:
            known.specification = specification
            return
        if not known and len(self._services) >= self._most:
            raise Refused("failed", f"{self._most} services are the most with this limit of open files")
        # First, so that the service keeps its old port if the new one is in use.
        listener = _listen(specification.port)
        if known:
            self.remove(specification.name)
        self.resume(Service(specification, listener))

    def resume(self, service: Service) -> None:
        """Serve with a listener that exists."""
        self._services[service.specification.name] = service
        self.acceptor.add(service.listener, lambda client: self._begin(service, client))

    def remove(self, name: object) -> None:
        """Listen no more for the service; its connections stay until they end. An unknown name is ignored."""
        service = self._services.pop(str(name), None)
        if service:
            self.acceptor.remove(service.listener)

    def check_files(self, name: object) -> None:
        """Raise Refused if new connections of the service would fail because of its files."""
        service = self._services.get(str(name))
        if service is None:
            raise Refused("invalid", "there is no such service")
        try:
            load_context(service.specification.destination)
        except ConnectFailed as error:
            raise Refused("invalid", str(error)) from error

    def services(self) -> list[Service]:
        """All services, in a fixed order."""
        return list(self._services.values())

    def state(self) -> list[dict[str, object]]:
        """The state of each service, in the same order."""
        with self._lock:
            return [service.state() for service in self.services()]

    def leave(self) -> None:
        """Leave all listeners to a successor, and end with the last connection."""
        # In this order. ``remove`` returns when no connection of the listener is on its way, so the number
        # below contains all of them. If it were read first, the process could end with a new connection.
        for name in list(self._services):
            self.remove(name)
        with self._lock:
            self.is_leaving = True
            is_drained = not self._connections
        if is_drained:
            self._on_drained()

    def abort(self) -> None:
        """End all connections."""
        with self._lock:
            splicings = tuple(self._open)
        for splicing in splicings:
            splicing.abort("the relay ends")

    def _begin(self, service: Service, client: socket.socket) -> None:
        with self._lock:
            self._connections += 1
        try:
            threading.Thread(target=self._connect, args=(service, client), daemon=True).start()
        except RuntimeError as error:  # the limit of threads
            self._fail(service, client, str(error))

    def _connect(self, service: Service, client: socket.socket) -> None:
        reason = "internal error; the log of the relay has the details"
        try:
            established = connect(service.specification.destination)
        except ConnectFailed as error:
            reason = str(error)
        else:
            reason = ""
            self._splice(service, client, established)
        finally:
            if reason:
                self._fail(service, client, reason)

    def _fail(self, service: Service, client: socket.socket, reason: str) -> None:
        with self._lock:
            service.failed(reason)
        reset(client)
        self._ended()

    def _splice(self, service: Service, client: socket.socket, established: Established) -> None:
        def end() -> None:
            with self._lock:
                service.ended(splicing)
                if splicing.problem:
                    service.failed(splicing.problem)
                self._open.discard(splicing)
                is_new = splicing.problem not in {"", service.problem}
                service.problem = splicing.problem or service.problem
            if is_new:
                log(f"{service.specification.name}: {established.address}: {splicing.problem}")
            self._ended()

        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        splicing = Splicing(client, established.stream, end)
        with self._lock:
            service.began(established, splicing)
            self._open.add(splicing)
        splicing.start()

    def _ended(self) -> None:
        self.acceptor.release()
        with self._lock:
            self._connections -= 1
            is_drained = self.is_leaving and not self._connections
        if is_drained:
            self._on_drained()


def log(text: str) -> None:
    """A line on standard error, which is the log."""
    with suppress(OSError):  # a full disk must not end a connection
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")
        sys.stderr.flush()


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((_LOOPBACK, port))
    except OSError as error:
        kind = "port-taken" if error.errno == errno.EADDRINUSE else "failed"
        raise Refused(kind, f"port {port}: {error.strerror}") from error
