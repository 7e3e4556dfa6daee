"""What the processes of a node import: the memory of each library is needed on every node."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_ca.authority import Authority

# A new name here costs memory on every node; docs/performance.md has the cost of the large ones.
SHARED = {
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "attr", "frozenlist", "multidict", "propcache", "yarl"),
    *("httpx2", "idna", "lightkube", "msgspec", "yaml"),
    *("typing_extensions",),
    *("botocore", "google", "prometheus_client", "structlog"),
}
# The protocol of the kubelet.
EXPECTED = {"tunnel": SHARED, "node": SHARED | {"grpc"}}
# Modules of the environment of the tests and of Debian's Python, and those that are part of a library above.
OTHERS = {"_distutils_hack", "cython_runtime", "grpc_tools", "kube_efs", "kube_efs_lab", "sitecustomize"}

# The process itself, until its event loop would start.
START = """
import gc, json, os, ssl, sys
from kube_efs import event_loop
def started(work):
    work.close()
    trusted = [one.cert_store_stats()["x509"] for one in gc.get_objects() if isinstance(one, ssl.SSLContext)]
    modules = sorted({name.partition(".")[0] for name in sys.modules})
    print(json.dumps([modules, sum(trusted), os.environ["SSL_CERT_FILE"]]))
event_loop.run = started
sys.argv = ["kube-efs", COMMAND]
from kube_efs.__main__ import main
sys.exit(main())
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("command", ["tunnel", "node"])
def test_process_of_a_node_imports_only_what_it_needs_at_its_start(command: str, tmp_path: Path) -> None:
    authorities_of_the_system = tmp_path / "ca.pem"
    authorities_of_the_system.write_text(Authority.create("ca").pem)
    ended = run(
        START.replace("COMMAND", repr(command)),
        SSL_CERT_FILE=str(authorities_of_the_system),
        NODE_NAME="one",
        CSI_ENDPOINT=f"unix://{tmp_path}/csi.sock",
        KUBE_EFS_TUNNEL_SOCKET=str(tmp_path / "tunnel.sock"),
    )
    assert ended.returncode == 0, ended.stderr
    modules, trusted, environment = json.loads(ended.stdout)
    assert (trusted, environment) == (0, str(authorities_of_the_system))
    own = {name for name in modules if not name.startswith("__")}
    libraries = own - set(sys.stdlib_module_names) - OTHERS
    assert {name for name in libraries if not name.startswith("_")} == EXPECTED[command]


def test_first_process_of_the_tunnels_container_imports_no_library() -> None:
    code = (
        "import os, sys\n"
        "os.getpid = lambda: 1\n"
        "import kube_efs.tunnels.supervisor as supervisor\n"
        "supervisor.supervise = lambda command: print(\n"
        "    command[1:], sorted({'asyncio', 'structlog', 'typer'} & set(sys.modules))\n"
        ") or 7\n"
        "sys.argv = ['kube-efs', 'tunnel']\n"
        "from kube_efs.__main__ import main\n"
        "sys.exit(main())"
    )
    ended = run(code)
    assert (ended.returncode, ended.stdout) == (7, "['-m', 'kube_efs', 'tunnel'] []\n"), ended.stderr


@pytest.mark.parametrize("arguments", [["tunnel"], ["node"]])
def test_invalid_settings_of_a_node_process_end_it_with_2_and_one_line(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['kube-efs', *{arguments!r}]\n"
        "from kube_efs.__main__ import main; sys.exit(main())"
    )
    ended = run(code, LOGGING_LEVEL="LOUD")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: LOGGING_LEVEL: 'LOUD' is not a valid level")
    assert len(ended.stderr.splitlines()) == 1
