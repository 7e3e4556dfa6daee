"""The process of the relay: ``python -m kube_efs.tunnels.relay.process SOCKET``.

Mounts depend on it, so it must survive the agent: it has no pipe to the agent, which starts it in a session
of its own, without a terminal. SIGTERM ends it with all connections.

The agent controls it through ``SOCKET``, on which only processes of the same user are served. A connection
carries one request and one answer, each a line of JSON:

* ``{"command": "add", "service": {...}}``, also to change a service
* ``{"command": "remove", "name": ...}``
* ``{"command": "state"}``
* ``{"command": "hand_over"}``, see below

The answer is an object, ``{"error": KIND, "reason": TEXT}`` after a failure. If the file of ``SOCKET`` is
removed, the process creates it again.

**A successor** is a second process with the same argument, for example of a newer version. It sends this one
the request ``hand_over`` and gets the listeners: that of ``SOCKET``, and those of all services with their
states. Both processes then share them, so no port is ever closed. When everything is ready, the successor
writes ``commit``. This process answers with a last line, closes its listeners, and stays for its connections.
If the successor disappears before it has written that, nothing changes. A successor that gets no last line
ends: two processes must never both believe that they are in charge.
"""

import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kube_efs.tunnels.relay.serving import Acceptor, Refused, Relay, log

_MOST_FILES = 65536  # if there is no limit
# A connection has two sockets and two pipes, six descriptors. The others are for listeners and requests.
_FILES_OF_A_CONNECTION = 8
# A thread uses a few pages of that. Looking up names takes most.
_STACK_BYTES = 512 * 1024
_MOST_REQUESTS = 32
_REQUEST_BYTES = 64 * 1024
_REQUEST_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
# Less than the agent waits for an answer.
_CHECK_SECONDS = 5.0
_MOST_DESCRIPTORS = 250  # of an earlier relay, which sends so many in a message
_COMMIT = b"commit\n"


class Control:
    """Answers on the control socket, in a thread for each request."""

    def __init__(self, relay: Relay, listener: socket.socket) -> None:
        self._relay = relay
        self._listener = listener
        self.acceptor = Acceptor(_MOST_REQUESTS)
        self.acceptor.add(listener, self._serve)
        # Held while a successor takes over: it would not see a change after it got the list.
        self._changing = threading.Lock()

    def restore_file(self, path: str) -> None:
        """Listen at the path again if somebody has removed the file."""
        with suppress(OSError, Refused), self._in_charge():
            listener = listen(path)  # fails while the file exists
            self.acceptor.remove(self._listener)
            self._listener = listener
            self.acceptor.add(listener, self._serve)

    def _serve(self, connection: socket.socket, problem: str) -> None:
        with connection, suppress(OSError):
            # The process, the user and the group at the other end.
            _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if problem or user != os.geteuid():
                return
            try:
                answer = self._answer(_parse(receive_line(connection, _REQUEST_SECONDS)), connection)
            except Refused as error:
                answer = {"error": error.kind, "reason": str(error)}
            connection.sendall(_line(answer))

    def _answer(self, request: Mapping[str, Any], connection: socket.socket) -> Mapping[str, Any]:
        """Carry out one request; raises Refused, and OSError if there is nobody to answer."""
        match request:
            case {"command": "state"}:
                services = self._relay.state()
                return {"pid": os.getpid(), "leaving": self._relay.is_leaving, "services": services}
            case {"command": "add", "service": service}:
                with self._in_charge():
                    self._relay.add(service)
            case {"command": "remove", "name": name}:
                with self._in_charge():
                    self._relay.remove(name)
            case {"command": "hand_over"}:
                self._hand_over(connection)
            case _:
                raise Refused("invalid", "this request is unknown")
        return {}

    @contextmanager
    def _in_charge(self) -> Iterator[None]:
        """Nobody else changes anything meanwhile; raises Refused if a successor has taken over."""
        with self._changing:
            if self._relay.is_leaving:
                raise Refused("leaving", "a successor has the services")
            yield

    def _hand_over(self, connection: socket.socket) -> None:
        """Leave everything to a successor, and end this process after the last of its connections."""
        with self._in_charge():
            listeners = [self._listener, *(service.listener for service in self._relay.services.values())]
            send_listeners(connection, listeners, {"services": self._relay.state()})
            if receive_line(connection, _REQUEST_SECONDS) != _COMMIT:
                raise ConnectionError("the successor does not take over")
            # If this fails, the successor gets no last line and ends, and this process stays in charge. After
            # it, both accept for a moment. That is harmless: both have the services.
            connection.sendall(_line({}))
            self.acceptor.remove(self._listener)
            self._relay.leave()
        log("a successor has taken over")
        self._relay.acceptor.drain()
        os.kill(os.getpid(), signal.SIGTERM)


def take_over(relay: Relay, predecessor: socket.socket) -> socket.socket:
    """Take over the services of a running relay, and return its listener; raises OSError or Refused."""
    predecessor.sendall(_line({"command": "hand_over"}))
    # Until ``main`` starts the threads that accept, this process accepts nothing. If it fails before, the
    # connections in the queues of the shared listeners are those of the predecessor.
    (control, *listeners), answer = receive_listeners(predecessor)
    for state, listener in zip(answer["services"], listeners, strict=True):
        relay.resume(state, listener)
    # The agent has given it up, perhaps because the predecessor was slow: it would end with its listeners.
    if signal.SIGTERM in signal.sigpending():
        raise ConnectionError("it must end before it has taken over")
    predecessor.sendall(_COMMIT)
    if not receive_line(predecessor, _ANSWER_SECONDS):
        raise ConnectionError("the running relay did not hand over")
    return control


def receive_line(connection: socket.socket, seconds: float) -> bytes:
    """The next line, incomplete if it is too long or the peer ends; raises OSError, also after the time.

    The time is for each part of the line. A peer that sends byte for byte is of the same user.
    """
    connection.settimeout(seconds)
    with connection.makefile("rb") as file:
        return file.readline(_REQUEST_BYTES)


def send_listeners(connection: socket.socket, listeners: Sequence[socket.socket], answer: object) -> None:
    """Send the descriptors, each with a space, and then the answer as a line; raises OSError."""
    for listener in listeners:
        socket.send_fds(connection, [b" "], [listener.fileno()])
    connection.sendall(_line(answer))


def receive_listeners(connection: socket.socket) -> tuple[list[socket.socket], dict[str, Any]]:
    """What ``send_listeners`` sent; raises OSError, or Refused."""
    line, listeners = b"", []
    while not line.endswith(b"\n"):
        part, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _MOST_DESCRIPTORS)
        if not part:
            raise ConnectionError("the running relay ended")
        listeners += [socket.socket(fileno=descriptor) for descriptor in descriptors]
        line += part
    answer = _parse(line)
    if "error" in answer:
        raise Refused(answer["error"], answer["reason"])
    return listeners, answer


def open_control(relay: Relay, path: str) -> socket.socket:
    """The listener of the relay that serves the path, with its services, or else a new one.

    Raises OSError or Refused.
    """
    with socket.socket(socket.AF_UNIX) as predecessor:
        predecessor.settimeout(_REQUEST_SECONDS)
        try:
            predecessor.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            remove_file(path)  # of a relay that was killed
            return listen(path)
        return take_over(relay, predecessor)


def listen(path: str) -> socket.socket:
    """A control socket at the path, for this user alone; raises OSError, also if the file exists."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o600)  # noqa: PTH101 - pathlib takes memory
    listener.listen()  # until now, nobody can connect
    return listener


def remove_file(path: str) -> None:
    """Remove it, if it exists; raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - pathlib takes memory


def main() -> None:
    """Serve until SIGTERM, or until a successor has taken over and the last connection has ended."""
    path = sys.argv[1]
    # Before the first thread, because threads inherit it: none of them must be interrupted.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.stack_size(_STACK_BYTES)
    # The agent has raised the limit.
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    relay = Relay((_MOST_FILES if files == resource.RLIM_INFINITY else files) // _FILES_OF_A_CONNECTION)
    try:
        control = Control(relay, open_control(relay, path))
    except (OSError, Refused) as error:
        log(f"{path}: {error}")
        sys.exit(1)
    relay.acceptor.start()
    control.acceptor.start()
    log(f"the relay serves {path}")
    while not signal.sigtimedwait({signal.SIGTERM}, _CHECK_SECONDS):
        control.restore_file(path)
    # Otherwise a successor serves the path.
    if not relay.is_leaving:
        remove_file(path)
    log("the relay ends")
    # Threads may still wait, for example for a name server.
    os._exit(0)


def _line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parse(line: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict):
            return message
    raise Refused("invalid", "this is not a JSON object")


if __name__ == "__main__":
    main()
