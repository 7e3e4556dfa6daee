"""The process of the relay: ``python -m kube_efs.tunnels.relay.process SOCKET``.

Mounts depend on it, so it must survive the agent: it has no pipe to the agent and ignores the signals of a
terminal. SIGTERM ends it with all connections.

The agent controls it through ``SOCKET``, on which only processes of the same user are served. A connection
carries one request and one answer, each a line of JSON:

* ``{"command": "add", "service": {...}}``, also to change a service
* ``{"command": "remove", "name": ...}``
* ``{"command": "renew", "name": ...}``: can the files of its certificate be used?
* ``{"command": "state"}``
* ``{"command": "hand_over"}``, see below

The answer is an object, ``{"error": KIND, "reason": TEXT}`` after a failure.

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
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kube_efs.tunnels.relay.serving import Acceptor, Refused, Relay, Service, log

_MOST_FILES = 65536
# A connection has two sockets and two pipes, six descriptors. The others are for listeners and requests.
_FILES_OF_A_CONNECTION = 8
# A thread uses a few pages of that. Looking up names takes most.
_STACK_BYTES = 512 * 1024
_MOST_REQUESTS = 32
_REQUEST_BYTES = 64 * 1024
_REQUEST_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_MOST_DESCRIPTORS = 250  # in a message, SCM_MAX_FD is 253
_COMMIT = b"commit\n"
_OF_TERMINALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


class Control:
    """Answers on the control socket, in a thread for each request."""

    def __init__(self, relay: Relay, listener: socket.socket) -> None:
        self._relay = relay
        self._listener = listener
        self._acceptor = Acceptor(_MOST_REQUESTS)
        self._acceptor.add(listener, self._begin)
        # Held while a successor takes over: it would not see a change after it got the list.
        self._changing = threading.Lock()

    def start(self) -> None:
        """Start to accept requests."""
        threading.Thread(target=self._acceptor.run, daemon=True).start()

    def _begin(self, connection: socket.socket) -> None:
        try:
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except RuntimeError:  # the limit of threads; the agent asks again
            connection.close()
            self._acceptor.release()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                self._answer(connection)
        finally:
            self._acceptor.release()

    def _answer(self, connection: socket.socket) -> None:
        if _user_of(connection) != os.geteuid():
            return
        line = receive_line(connection, _REQUEST_SECONDS, most_bytes=_REQUEST_BYTES)
        try:
            request = _parse(line)
            if request.get("command") == "hand_over":
                self._hand_over(connection)
                return
            answer = self._do(request)
        except Refused as error:
            answer = {"error": error.kind, "reason": str(error)}
        connection.sendall(_line(answer))

    def _do(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out one request; raises Refused."""
        match request:
            case {"command": "state"}:
                services = self._relay.state()
                return {"pid": os.getpid(), "leaving": self._relay.is_leaving, "services": services}
            case {"command": "renew", "name": name}:
                self._relay.check_files(name)
            case {"command": "add", "service": service}:
                with self._changing:
                    self._require_listeners()
                    self._relay.add(service)
            case {"command": "remove", "name": name}:
                with self._changing:
                    self._require_listeners()
                    self._relay.remove(name)
            case _:
                raise Refused("invalid", "this request is unknown")
        return {}

    def _require_listeners(self) -> None:
        if self._relay.is_leaving:
            raise Refused("leaving", "a successor has the services")

    def _hand_over(self, connection: socket.socket) -> None:
        with self._changing:
            self._require_listeners()
            services = self._relay.services()
            listeners = [self._listener, *(service.listener for service in services)]
            send_listeners(connection, listeners, {"services": self._relay.state()})
            if receive_line(connection, _REQUEST_SECONDS, most_bytes=len(_COMMIT)) != _COMMIT:
                return
            # If this fails, the successor gets no last line and ends, and this process stays in charge. After
            # it, both accept for a moment. That is harmless: both have the services.
            connection.sendall(_line({}))
            self._acceptor.remove(self._listener)
            self._relay.leave()
        log("a successor has taken over")


def take_over(relay: Relay, predecessor: socket.socket) -> Control:
    """Take over the listeners and services of a running relay; raises OSError or Refused if it keeps them."""
    predecessor.settimeout(_REQUEST_SECONDS)
    predecessor.sendall(_line({"command": "hand_over"}))
    # Until ``main`` starts the threads that accept, this process accepts nothing. If it fails before, the
    # connections in the queues of the shared listeners are those of the predecessor.
    listeners, answer = receive_listeners(predecessor)
    control = Control(relay, listeners[0])
    for state, listener in zip(answer["services"], listeners[1:], strict=True):
        relay.resume(Service.resume(state, listener))
    # The agent has given it up, perhaps because the predecessor was slow: it would end with its listeners.
    if signal.SIGTERM in signal.sigpending():
        raise ConnectionError("it must end before it has taken over")
    predecessor.sendall(_COMMIT)
    if not receive_line(predecessor, _ANSWER_SECONDS, most_bytes=_REQUEST_BYTES):
        raise ConnectionError("the running relay did not hand over")
    return control


def receive_line(connection: socket.socket, seconds: float, *, most_bytes: int) -> bytes:
    """The next line, incomplete if it is too long or the peer ends; raises OSError, also after the time."""
    deadline = time.monotonic() + seconds  # of all parts together: a peer may send byte for byte
    line = b""
    while not line.endswith(b"\n") and len(line) < most_bytes:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(most_bytes - len(line))
        if not part:
            break
        line += part
    connection.settimeout(seconds)
    return line


def send_listeners(
    connection: socket.socket, listeners: Sequence[socket.socket], answer: Mapping[str, object]
) -> None:
    """Send the descriptors, each batch with a space, and then the answer as a line; raises OSError."""
    for first in range(0, len(listeners), _MOST_DESCRIPTORS):
        batch = [listener.fileno() for listener in listeners[first : first + _MOST_DESCRIPTORS]]
        socket.send_fds(connection, [b" "], batch)
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


def connect_predecessor(path: str) -> socket.socket | None:
    """A connection to the relay that serves the path; None if there is none, or only its stale socket."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_REQUEST_SECONDS)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def listen(path: str) -> socket.socket:
    """A control socket at the path, for this user alone; replaces a stale one. Raises OSError."""
    remove_file(path)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen()
    return listener


def remove_file(path: str) -> None:
    """Remove it, if it exists; raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - pathlib takes memory


def raise_file_limit() -> int:
    """Raise the limit of open files as far as permitted; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def main() -> None:
    """Serve until SIGTERM, or until a successor has taken over and the last connection has ended."""
    path = sys.argv[1]
    # Before the first thread, because threads inherit both: none of them must be interrupted.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    threading.stack_size(_STACK_BYTES)
    relay = Relay(
        raise_file_limit() // _FILES_OF_A_CONNECTION,
        on_drained=lambda: os.kill(os.getpid(), signal.SIGTERM),
    )
    try:
        predecessor = connect_predecessor(path)
        control = take_over(relay, predecessor) if predecessor else Control(relay, listen(path))
    except (OSError, Refused) as error:
        log(f"{path}: {error}")
        sys.exit(1)
    threading.Thread(target=relay.acceptor.run, daemon=True).start()
    control.start()
    log(f"the relay serves {path}")
    signal.sigwait({signal.SIGTERM})
    # Otherwise a successor serves the path.
    if not relay.is_leaving:
        remove_file(path)
    relay.abort()
    log("the relay ends")
    # Threads may still wait, for example for a name server.
    os._exit(0)


def _user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parse(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise Refused("invalid", "this is not a JSON object")
    return message


if __name__ == "__main__":
    main()
