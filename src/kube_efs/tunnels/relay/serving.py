"""The services of the relay: their listeners, their connections and their counters.

One thread accepts the connections of all services. Each connection then has a thread of its own, which
connects to the mount target, so a slow one delays nobody else, and copies the data of one direction. The
other direction has a second thread (``splicing``).

The lock of ``Acceptor`` is held while a connection is accepted, that of a ``Service`` protects its counters,
and nothing takes both. ``process`` allows one change of the services at a time, and this module does not
protect them.
"""

import errno
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kube_efs.tunnels.relay.mount_target import ConnectFailed, Destination, Negotiated, connect
from kube_efs.tunnels.relay.splicing import RESET, Splicing

_PORTS = range(1024, 65536)
_MOST_SECONDS = 3600
_PAUSE_SECONDS = 0.1
_COUNTERS = ("connected", "sent_bytes", "received_bytes")


class Refused(Exception):
    """A request that is not carried out; ``kind`` is for the agent, the text for people."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def parse_destination(document: Mapping[str, Any]) -> Destination:
    """Where the connections of a service lead; raises Refused if a value has the wrong type or size.

    The agent has checked the meaning of the values. Here they only must do no harm.
    """
    match document:
        case {
            "name": str(name),
            "port": int(port),
            "addresses": [_, *_] as addresses,
            "check_host": str(host),
            "ca_file": str(ca_file),
            "certificate": None | {"path": str()} as certificate,
            "connect_timeout_seconds": int() | float() as timeout,
        } if (
            port in _PORTS
            and all(isinstance(one, str) and one for one in (name, *addresses))
            and 0 < timeout <= _MOST_SECONDS
        ):
            return Destination(tuple(addresses), host, ca_file, certificate and certificate["path"], timeout)
    raise Refused("invalid", "the description of the service is not valid")


class Service:
    """A service that listens, and its connections.

    ``state`` has the agent's description as ``service``, and those of another relay also its counters, which
    this one continues. A new ``destination`` replaces the old one as a whole; a connection reads it once.
    """

    def __init__(self, state: Mapping[str, Any], listener: socket.socket) -> None:
        self.document = state["service"]
        self.destination = parse_destination(self.document)
        self.listener = listener
        self._lock = threading.Lock()
        self._open: set[Splicing] = set()
        self._connected, self._sent_bytes, self._received_bytes = (state.get(name, 0) for name in _COUNTERS)
        self._last = Negotiated()
        # Why the last connection failed or ended, empty after a handshake; and the last reason in the log.
        self._reason = self._logged = ""

    def state(self) -> dict[str, object]:
        """The values of ``control.RelayedService``."""
        with self._lock:
            return {
                "service": self.document,
                "connections": len(self._open),
                "connected": self._connected,
                "sent_bytes": self._sent_bytes + sum(one.sent_bytes for one in self._open),
                "received_bytes": self._received_bytes + sum(one.received_bytes for one in self._open),
                "reason": self._reason,
                **self._last._asdict(),
            }

    def serve(self, client: socket.socket, problem: str) -> None:
        """Carry the connection until its end; refuse it if there is a problem."""
        reason = problem or "internal error; the log of the relay has the details"
        try:
            # Also the end of this process resets it. The listener must not have this option, which its
            # connections inherit: a relay of version 0.2.0 that shares it would lose data of regular ends.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            if not problem:
                reason = self._carry(client)
        except ConnectFailed as error:
            reason = str(error)
        finally:
            if reason:
                if reason != self._logged:
                    log(f"{self.document['name']}: {reason}")
                self._reason = self._logged = reason
            client.close()

    def _carry(self, client: socket.socket) -> str:
        """Connect, and copy the data until the end; the result is the reason of an irregular one."""
        stream, negotiated = connect(self.destination)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        splicing = Splicing(client, stream)
        with self._lock:
            self._open.add(splicing)
            self._connected += 1
            self._last, self._reason = negotiated, ""
        try:
            splicing.run()
        finally:
            with self._lock:
                self._open.discard(splicing)
                self._sent_bytes += splicing.sent_bytes
                self._received_bytes += splicing.received_bytes
        return splicing.problem


class Acceptor:
    """Accepts connections of any number of listeners, at most ``most`` open ones at a time.

    With so many, clients wait in the queues of the listeners until others end.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._room = threading.BoundedSemaphore(most)
        self._selector = selectors.EpollSelector()
        # Held while a connection is accepted: the number of a listener that is closed could be another one.
        self._lock = threading.Lock()

    def add(self, listener: socket.socket, serve: Callable[[socket.socket, str], None]) -> None:
        """Accept its connections, each with a call of ``serve`` in a thread of its own.

        The text is a problem: if the system has no thread left, ``serve`` only closes the connection.
        """
        # A successor may have accepted the connection that woke this process.
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, (listener, serve))

    def remove(self, listener: socket.socket) -> None:
        """Accept no more of its connections, and close it here."""
        with self._lock:
            # Closing alone would not do: while a successor has the listener, epoll would report it.
            self._selector.unregister(listener)
            listener.close()

    def start(self) -> None:
        """Accept until the process ends."""
        threading.Thread(target=self._run, daemon=True).start()

    def drain(self) -> None:
        """Wait until the last connection has ended; nothing is accepted any more."""
        for _ in range(self._most):
            self._room.acquire()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                # Without the lock: it may take hours until a connection ends, and ``remove`` must not wait.
                self._room.acquire()
                try:
                    listener, serve = key.data
                    with self._lock:
                        connection, _ = listener.accept()
                except OSError as error:
                    self._room.release()
                    if not isinstance(error, BlockingIOError):  # that one was accepted by a successor
                        # The listener stays ready, so without a pause this would spin.
                        time.sleep(_PAUSE_SECONDS)
                else:
                    self._begin(serve, connection)

    def _begin(self, serve: Callable[[socket.socket, str], None], connection: socket.socket) -> None:
        def run(problem: str = "") -> None:
            try:
                serve(connection, problem)
            finally:
                self._room.release()

        try:
            threading.Thread(target=run, daemon=True).start()
        except RuntimeError as error:  # the limit of threads
            run(str(error))


class Relay:
    """All services: at most ``most``, with at most as many connections."""

    def __init__(self, most: int) -> None:
        self.acceptor = Acceptor(most)
        self.is_leaving = False
        self._most = most
        self.services: dict[str, Service] = {}

    def add(self, document: Mapping[str, Any]) -> None:
        """Listen for a service, or change it; raises Refused.

        Connections stay. If the port is the same, the listener and the counters stay, too.
        """
        destination = parse_destination(document)
        name, port = document["name"], document["port"]
        known = self.services.get(name)
        if known and known.document["port"] == port:
            known.document, known.destination = document, destination
            return
        if not known and len(self.services) >= self._most:
            raise Refused("failed", f"{self._most} services are the most with this limit of open files")
        # First, so that the service keeps its old port if the new one is in use.
        try:
            listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            kind = "port-taken" if error.errno == errno.EADDRINUSE else "failed"
            raise Refused(kind, f"port {port}: {error.strerror}") from error
        self.remove(name)
        self.resume({"service": document}, listener)

    def resume(self, state: Mapping[str, Any], listener: socket.socket) -> None:
        """Serve with a listener that exists, and continue the counters of the state."""
        service = Service(state, listener)
        self.services[service.document["name"]] = service
        self.acceptor.add(listener, service.serve)

    def remove(self, name: object) -> None:
        """Listen no more for the service; its connections stay until they end. An unknown name is ignored."""
        service = self.services.pop(str(name), None)
        if service:
            self.acceptor.remove(service.listener)

    def state(self) -> list[dict[str, object]]:
        """The state of each service, in the order of ``services``."""
        return [service.state() for service in list(self.services.values())]

    def leave(self) -> None:
        """Leave all listeners to a successor; the connections stay until they end."""
        for name in list(self.services):
            self.remove(name)
        self.is_leaving = True


def log(text: str) -> None:
    """A line on standard error, which is the log."""
    with suppress(OSError):  # a full disk must not end a connection
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")
