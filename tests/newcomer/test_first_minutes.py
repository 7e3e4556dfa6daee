"""The first commands of somebody who has cloned the repository, on a machine where nothing is installed."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.newcomer.proxy import Proxy
from tests.newcomer.root_file_systems import (
    DEBIAN_11,
    DEBIAN_12,
    DEBIAN_13,
    NEWCOMER,
    UBUNTU_24_04,
    Release,
    Root,
    unpack,
)

_SUPPORTED = pytest.mark.parametrize(
    "release", [DEBIAN_12, DEBIAN_13, UBUNTU_24_04], ids=lambda release: release.suite
)
# All of these are long, for slow networks and machines that do something else.
_ANSWER_SECONDS = 300
_SETUP_SECONDS = 1800
_TESTS_SECONDS = 3600
_WITHOUT_NETWORK = ("unshare", "--net")

Fresh = Callable[[Release], Root]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Fresh]:
    yield lambda release: unpack(release, tmp_path)
    shutil.rmtree(tmp_path)


@_SUPPORTED
async def test_make_demo(fresh: Fresh, release: Release) -> None:
    answer = await fresh(release).run("make", "demo", seconds=_SETUP_SECONDS)
    assert answer.code == 0, answer.text
    assert "Every check held" in answer.text


@_SUPPORTED
async def test_make_test(fresh: Fresh, release: Release) -> None:
    answer = await fresh(release).run("make", "test", seconds=_TESTS_SECONDS)
    assert answer.code == 0, answer.text
    assert re.search(r"\d+ passed", answer.text)


async def test_demo_without_root_lists_the_packages(fresh: Fresh) -> None:
    answer = await fresh(DEBIAN_12).run("make", "demo", seconds=_ANSWER_SECONDS, user=NEWCOMER, cached=False)
    assert answer.code == 2
    packages = "python3-venv stunnel4 nfs-ganesha libnfs-utils kubernetes-client nfs-ganesha-vfs"
    *said, makes = answer.text.splitlines()
    assert said == [
        "kube-efs needs programs that are not here:",
        "  Python 3.11 or newer, with venv (Debian package python3-venv): running kube-efs",
        "  stunnel (Debian package stunnel4): the TLS tunnels",
        "  ganesha.nfsd (Debian package nfs-ganesha): the NFS server of the embedded EFS",
        "  nfs-cp (Debian package libnfs-utils): reading and writing through a tunnel without mounting",
        "  kubectl (Debian package kubernetes-client): looking at the embedded cluster (any kubectl will do)",
        "  ganesha's VFS module (Debian package nfs-ganesha-vfs): serving a directory as a file system",
        "Installing them needs root. Run make as root, or run this and try again:",
        f"  sudo apt-get update && sudo apt-get install --no-install-recommends {packages}",
    ]
    assert makes.startswith("make: *** ")


async def test_setup_with_a_python_that_is_too_old(fresh: Fresh) -> None:
    answer = await fresh(DEBIAN_11).run("make", "setup", seconds=_ANSWER_SECONDS, cached=False)
    assert answer.code == 2
    needed, found, remedy, _ = answer.text.splitlines()
    assert needed == "kube-efs needs Python 3.11 or newer."
    assert re.fullmatch(r"  python3 is Python 3\.9\.\d+", found)
    assert remedy.endswith("If it is not on PATH, name it: make PYTHON=/path/to/python ...")


async def test_setup_without_network(fresh: Fresh) -> None:
    root = fresh(DEBIAN_12)
    packages = await root.run(
        "make", "setup", launcher=_WITHOUT_NETWORK, seconds=_ANSWER_SECONDS, cached=False
    )
    assert packages.code == 2
    *_, failed, remedy, _ = packages.text.splitlines()
    assert re.fullmatch(r"apt could not install python3-venv stunnel4 .*; see above\.", failed)
    assert remedy == (
        "If it cannot reach its servers: check the network. Behind a proxy, set http_proxy and https_proxy."
        " Then try again."
    )
    installed = await root.run("scripts/install-programs", seconds=_SETUP_SECONDS)
    assert installed.code == 0, installed.text
    python = await root.run("make", "setup", launcher=_WITHOUT_NETWORK, seconds=_ANSWER_SECONDS, cached=False)
    assert python.code == 2
    assert "pip could not install the Python packages into .venv; see above." in python.text
    assert "check the network. Behind a proxy, set https_proxy." in python.text


async def test_setup_behind_a_proxy(fresh: Fresh) -> None:
    root = fresh(DEBIAN_12)
    async with Proxy() as proxy:
        answer = await root.run(
            *("make", "setup"),
            launcher=proxy.launcher,
            pass_fds=proxy.pass_fds,
            environment={"http_proxy": proxy.url, "https_proxy": proxy.url},
            seconds=_SETUP_SECONDS,
        )
        assert answer.code == 0, answer.text
        assert proxy.requests["CONNECT"] > 0, "pip went another way"
        assert proxy.requests["GET"] > 0, "apt went another way"
