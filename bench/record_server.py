"""``python -m bench.record_server ADDRESS CERTIFICATE CLIENT``: a mount target that answers with zeros.

It is a process of its own, so that its cost is not that of a data plane. ``CLIENT`` is the certificate that
clients present, as EFS asks for one. TLS is 1.2 or 1.3, as the client prefers, always with AES-GCM.
"""

import socket
import ssl
import sys
import threading
from contextlib import suppress
from typing import Final

from bench.records import CALL, LAST_FRAGMENT, MARK, MEBIBYTE, NFS_PROGRAM, REPLY, receive_record

_PORT: Final = 2049
_SUCCESS: Final = 0
_PROGRAM_UNAVAILABLE: Final = 1


def main() -> None:
    """Serve until killed, in a thread for each connection."""
    address, certificate, client = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.load_verify_locations(client)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.set_ciphers("ECDHE+AESGCM")
    with socket.create_server((address, _PORT), backlog=128) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(context, connection), daemon=True).start()


def _serve(context: ssl.SSLContext, connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(2 * MEBIBYTE))
    with suppress(OSError), context.wrap_socket(connection, server_side=True) as tls:
        with suppress(ConnectionError):
            while True:
                tls.sendall(reply(receive_record(tls, buffer)))
        tls.unwrap()


def reply(call: memoryview) -> bytes:
    """The record with the reply: zeros, or a refusal of the program that efs-proxy asks EFS for."""
    xid, _, _, program, *_, wanted = CALL.unpack_from(call)
    is_nfs = program == NFS_PROGRAM
    header = REPLY.pack(xid, 1, 0, 0, 0, _SUCCESS if is_nfs else _PROGRAM_UNAVAILABLE)
    length = wanted if is_nfs else len(header)
    return MARK.pack(LAST_FRAGMENT | length) + header + bytes(length - len(header))


if __name__ == "__main__":
    main()
