"""A range of loopback addresses of one's own, for mount targets.

Mount targets are told apart by address alone, since all of them listen on port 2049. Linux answers on all of
127.0.0.0/8, so each embedded EFS takes a /16 of it, and several can run side by side.
"""

import errno
import ipaddress
import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Self

from fake_efs.errors import PlatformError
from fake_efs.tls_front import NFS_PORT

# 127.0.0.0/16 is everybody's; Debian's host name and resolvers are among the next ones.
_SECOND_OCTETS = range(16, 251)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackRange:
    """A /16 that nobody else who asks in the same way gets until it is released."""

    network: IPv4Network
    claim: socket.socket = field(repr=False)

    @classmethod
    def acquire(cls, second_octets: Iterable[int] | None = None) -> Self:
        """Take a free range, by default a random one; raises PlatformError when there is none.

        The mark of it is a socket bound to the range's first address, which no subnet hands out. It also
        finds out whether somebody, such as the system's NFS server, has port 2049 on every address.
        """
        for octet in second_octets or random.sample(_SECOND_OCTETS, len(_SECOND_OCTETS)):
            network = ipaddress.IPv4Network(f"127.{octet}.0.0/16")
            claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                claim.bind((str(network[1]), NFS_PORT))
            except OSError as error:
                claim.close()
                if error.errno != errno.EADDRINUSE:
                    raise PlatformError(
                        f"cannot be bound: {error}", field="address", value=network[1]
                    ) from error
            else:
                return cls(network=network, claim=claim)
        raise PlatformError(
            "is taken on every loopback address",
            field="port",
            value=NFS_PORT,
            remedy="stop the NFS server of this machine",
        )

    def release(self) -> None:
        """Give it back."""
        self.claim.close()
