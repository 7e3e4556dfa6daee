"""The network between this machine and its nodes, in a network namespace of the tests' own.

No other process has its addresses and interfaces, and they end with the tests. This machine has all addresses
of ``SERVICES`` and ``AWS``; a node reaches them through a tap interface, and nothing beyond.
"""

import ctypes
import os
import subprocess
from ipaddress import IPv4Interface, IPv4Network

SERVICES = IPv4Network("10.96.0.0/24")
AWS = IPv4Network("10.80.0.0/16")
# Of this machine and of the node on the interface, and of the node's pods.
GATEWAY = IPv4Interface("10.81.0.1/30")
NODE = IPv4Interface("10.81.0.2/30")
PODS = IPv4Network("10.244.0.0/24")
TAP = "tap0"
_CLONE_NEWNET = 0x40000000


def set_up() -> None:
    """Move this thread, and what it starts from now on, to a new namespace with these interfaces and routes.

    So several processes can have a cluster each.
    """
    # Python has os.unshare since 3.12.
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _ip("link", "set", "lo", "up")
    for network in (SERVICES, AWS):
        _ip("route", "add", "local", str(network), "dev", "lo")
    _ip("tuntap", "add", "dev", TAP, "mode", "tap")
    _ip("address", "add", str(GATEWAY), "dev", TAP)
    _ip("link", "set", TAP, "up")
    _ip("route", "add", str(PODS), "via", str(NODE.ip))


def cut_off_aws() -> None:
    """Lose all packets to mount targets and AWS, as with a wrong security group."""
    _ip("route", "delete", "local", str(AWS), "dev", "lo")
    _ip("route", "add", "blackhole", str(AWS))


def connect_aws() -> None:
    """Lose none any more."""
    _ip("route", "delete", "blackhole", str(AWS))
    _ip("route", "add", "local", str(AWS), "dev", "lo")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
