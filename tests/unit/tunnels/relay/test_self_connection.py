import ssl
import sys

import pytest

from kube_efs.tunnels.relay import mount_target, self_connection
from kube_efs.tunnels.relay.self_connection import find_obstacle, kernel_tls_obstacle


async def test_process_of_its_own_finds_the_same_obstacle_as_this_one() -> None:
    obstacle = find_obstacle()

    # With a kernel that has TLS, there is none.
    assert obstacle == "" or obstacle.startswith("the kernel does not encrypt TLS: ")
    assert await kernel_tls_obstacle(timeout_seconds=120) == obstacle


async def test_test_that_does_not_end_is_an_obstacle() -> None:
    assert await kernel_tls_obstacle(timeout_seconds=0.001) == (
        "the test of the kernel's TLS did not end in 0.001 s"
    )


async def test_test_that_fails_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_connection, "__name__", "no_such_module")
    found = await kernel_tls_obstacle(timeout_seconds=120)

    assert found == f"the test of the kernel's TLS failed ({sys.executable}: No module named no_such_module)"


@pytest.mark.parametrize("obstructed", ssl.TLSVersion.__members__.values())
def test_obstacle_of_any_version_counts(monkeypatch: pytest.MonkeyPatch, obstructed: ssl.TLSVersion) -> None:
    monkeypatch.setattr(self_connection, "VERSIONS", tuple(ssl.TLSVersion))
    monkeypatch.setattr(
        self_connection, "_obstacle_with", lambda version, *_: "no key" if version is obstructed else ""
    )

    assert find_obstacle() == "no key"


def test_stream_that_stays_in_user_space_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_kernel_keys() -> object:
        context = mount_target.client_context()
        context.options &= ~ssl.Options(mount_target._OP_ENABLE_KTLS)
        return context

    monkeypatch.setattr(self_connection, "client_context", without_kernel_keys)

    assert find_obstacle().startswith("the kernel does not encrypt TLS: ")
