"""The image: its content, and controller, tunnel and node from it on the embedded cluster."""

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
import structlog
from lightkube.resources.storage_v1 import CSINode
from scripts.sbom import bill_of_materials
from tests.image.containers import Container, output_of, podman, running
from tests.scenarios import steps
from tests.vulnerabilities import databases, tracker_data

from kube_efs.aws.connection import Service
from kube_efs.tunnels.sockets.ports import listening_ports
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.program import Program
from kube_efs_lab.programs import NODE
from tinykube.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOP = Path(__file__).parents[2]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
ARCHITECTURE = os.environ.get("ARCH")
_TAG = "-".join(filter(None, (PROJECT["version"], ARCHITECTURE)))
IMAGE = os.environ.get("IMAGE") or f"kube-efs:{_TAG}"
USER = 65532
# Of a person's shell, not of a pod.
_NOT_HANDED_ON = frozenset({"HOME", "LANG", "PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR"})
_LARGEST_BYTES = 260_000_000
_RELAY_BYTES = 15_000_000
# A line for each thing that has no business in the image.
_UNWANTED = """
for program in cc gcc g++ ld make pip pip3 git curl wget; do command -v $program; done
find / -xdev -type f -perm /6000
find / -xdev -name 'test_*.py' -path '*kube_efs*'
find / -xdev -type d \\( -name pip -o -name hatchling \\) -path '*-packages*'
find / -xdev -type d \\( -name boto3 -o -name moto -o -name pytest \\) -path '*-packages*'
find / -xdev -type d \\( -name tiny_ca -o -name tinykube -o -name fake_efs -o -name kube_efs_lab \\)
find / -xdev -user kube-efs ! -path '/proc/*' ! -path '/dev/*'
find /var/lib/apt/lists /root/.cache /run/secrets -type f
true
"""
# Imports the modules that are machine code.
_IMPORTING = """
import importlib, pathlib, sysconfig
packages = pathlib.Path(sysconfig.get_path("purelib"))
for path in sorted(packages.rglob("*.so")):
    if path.parent.suffix != ".libs":
        name = ".".join([*path.relative_to(packages).parent.parts, path.name.split(".")[0]])
        print(importlib.import_module(name).__name__)
"""
# A line for each module without a compiled file, or with one that depends on file times (PEP 552), which the
# build changes. Processes cannot write, so each would compile such modules at each start.
_WITHOUT_COMPILED = """
import importlib.util, pathlib, sys
for directory in (pathlib.Path(part) for part in sys.path[1:]):
    for path in directory.rglob("*.py"):
        compiled = pathlib.Path(importlib.util.cache_from_source(path))
        if path.exists() and not (compiled.exists() and compiled.read_bytes()[4:8] == bytes([1, 0, 0, 0])):
            print(path)
"""


async def _inspect() -> Any:
    (found,) = json.loads(await podman("image", "inspect", IMAGE))
    return found


async def test_image_prints_version_and_help() -> None:
    revision = (await _inspect())["Labels"]["org.opencontainers.image.revision"]
    assert await output_of(IMAGE, "--version") == f"kube-efs {PROJECT['version']} ({revision})\n"
    assert "Manage this node's TLS tunnels" in await output_of(IMAGE, "tunnel", "--help")


async def test_image_has_labels_user_and_limited_size() -> None:
    found = await _inspect()
    prefix = "org.opencontainers.image."
    labels = {name.removeprefix(prefix): text for name, text in found["Labels"].items()}
    assert labels["title"] == PROJECT["name"]
    assert labels["version"] == PROJECT["version"]
    assert labels["licenses"] == PROJECT["license"]
    assert labels["description"] == PROJECT["description"]
    assert labels["revision"]
    assert found["Config"]["User"] == f"{USER}:{USER}"
    assert found["Size"] < _LARGEST_BYTES
    assert found["Architecture"] == (ARCHITECTURE or found["Architecture"])


async def test_group_of_the_user_is_the_one_that_manifests_name() -> None:
    """A pod with ``runAsUser`` and without ``runAsGroup`` has the group of the user in the image."""
    output = await output_of(IMAGE, "-c", "id kube-efs", entry_point="/bin/sh")
    assert output == f"uid={USER}(kube-efs) gid={USER}(kube-efs) groups={USER}(kube-efs)\n"


async def test_image_contains_no_unneeded_files() -> None:
    assert await output_of(IMAGE, "-c", _UNWANTED, entry_point="/bin/sh") == ""


async def test_image_contains_programs_and_certificate_authorities() -> None:
    programs = ["chown", "mount.nfs4", "stunnel", "umount"]
    looking = f"for program in {' '.join(programs)}; do command -v $program; done"
    starting = "(chown --version && mount.nfs4 -V && stunnel -version && umount -V) >/dev/null 2>&1; echo $?"
    counting = "grep -c BEGIN /etc/amazon/efs/efs-utils.crt"
    script = f"{looking}; {starting}; {counting}"
    lines = (await output_of(IMAGE, "-c", script, entry_point="/bin/sh")).splitlines()
    assert [Path(line).name for line in lines] == [*programs, "0", "5"]


async def test_image_has_the_same_authorities_under_the_names_of_their_hashes() -> None:
    files = "/etc/amazon/efs/efs-utils.crt"
    names = f'for file in {files}.d/*; do echo "$(openssl x509 -noout -subject_hash -in $file).0 $file"; done'
    compared = f"cat {files}.d/* | sort | sha256sum; sort {files} | sha256sum"
    lines = (await output_of(IMAGE, "-c", f"{names}; {compared}", entry_point="/bin/sh")).splitlines()
    *pairs, in_directory, in_file = lines
    assert in_directory == in_file
    assert len(pairs) == 5
    assert all(pair.split()[0] == Path(pair.split()[1]).name for pair in pairs)


async def test_no_process_compiles_modules() -> None:
    assert await output_of(IMAGE, "-c", _WITHOUT_COMPILED, entry_point="/opt/kube-efs/bin/python") == ""


async def test_compiled_modules_can_be_imported() -> None:
    output = await output_of(IMAGE, "-c", _IMPORTING, entry_point="/opt/kube-efs/bin/python")
    assert {"grpc._cython.cygrpc", "yaml._yaml", "pydantic_core._pydantic_core"} <= set(output.split())


async def test_packages_match_the_constraints() -> None:
    listing = "from importlib.metadata import distributions as d\nfor x in d(): print(x.name, x.version)"
    command = ("-c", listing)
    output = await output_of(IMAGE, *command, entry_point="/opt/kube-efs/bin/python")
    found = dict(line.split() for line in output.splitlines())
    pinned = dict(line.split("==") for line in (TOP / "constraints.txt").read_text().split())
    canonical = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
    assert found.pop("kube-efs") == PROJECT["version"]
    assert {name: canonical.get(name.lower().replace("_", "-")) for name in found} == found
    assert {"aiobotocore", "grpcio", "lightkube"} <= found.keys()


async def test_bill_of_materials_has_the_license_of_every_part() -> None:
    root = (await podman("image", "mount", IMAGE)).strip()
    try:
        text = await asyncio.to_thread(
            bill_of_materials, Path(root), name="kube-efs", version=PROJECT["version"]
        )
    finally:
        await podman("image", "unmount", IMAGE)
    found = {one["name"]: one for one in json.loads(text)["components"]}
    assert {"libssl3t64", "stunnel4", "tini", "grpcio", "kube-efs"} <= found.keys()
    assert found["kube-efs"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]


async def _scan(*options: str) -> tuple[int | None, list[str]]:
    """The exit status and the output, by default without exceptions."""
    command = (sys.executable, "-m", "scripts.scan", "--image", IMAGE, "--exceptions", os.devnull, *options)
    process = await asyncio.create_subprocess_exec(*command, cwd=TOP, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return process.returncode, output.decode().splitlines()


async def test_scan_succeeds_without_known_vulnerabilities() -> None:
    async with databases() as where:
        found = await _scan("--osv-url", where.osv_url, "--tracker-url", where.tracker_url)
    assert found == (0, ["OSV: 0 found", "Debian's security tracker: 0 found"])


async def test_scan_finds_vulnerabilities_in_the_image_unless_accepted(tmp_path: Path) -> None:
    accepted = tmp_path / "exceptions.toml"
    accepted.write_text(
        '[[accepted]]\nid = "CVE-2030-2222"\npackage = "openssl"\nreason = "a test"\nuntil = 9999-01-01\n'
    )
    async with databases(data=tracker_data(["CVE-2030-2222,openssl,SHRF,99.1-1,"])) as where:
        options = ("--osv-url", where.osv_url, "--tracker-url", where.tracker_url)
        status, lines = await _scan(*options)
        status_with_exception, _ = await _scan(*options, "--exceptions", str(accepted))
    assert (status, status_with_exception) == (1, 0)
    assert re.fullmatch(r"openssl \S+: CVE-2030-2222; fixed in 99\.1-1", lines[-1])


@pytest.mark.parametrize(("options", "expected"), [((), 1), (("--if-reachable",), 0)])
async def test_scan_says_that_databases_cannot_be_reached(options: Sequence[str], expected: int) -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    status, lines = await _scan("--osv-url", closed, "--tracker-url", closed, *options)
    assert status == expected
    assert [line.partition(" cannot be reached")[0] for line in lines] == [
        "NOT CHECKED: OSV",
        "NOT CHECKED: Debian's security tracker",
    ]


@pytest.mark.parametrize("service", [*Service, "sso", "sso-oidc"])
async def test_image_has_the_client_of_every_aws_service_in_use(service: str) -> None:
    making = (
        "import sys, botocore.session as b; c = b.get_session().create_client(sys.argv[1], 'us-east-1');"
        "print(c.meta.service_model.endpoint_prefix, len(c.meta.service_model.operation_names) > 3)"
    )
    output = await output_of(IMAGE, "-c", making, str(service), entry_point="/opt/kube-efs/bin/python")
    assert output.split()[1] == "True"


# --- on a cluster


@pytest.fixture(scope="module", autouse=True)
def quiet_parts() -> Iterator[None]:
    """Omit the connections of probes from the output of failed tests."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield
    structlog.configure(**before)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedCluster]:
    """A cluster whose controller, tunnel and node run from the image."""
    if (await _inspect())["Architecture"] != (await podman("info", "--format", "{{.Host.Arch}}")).strip():
        pytest.skip("on an emulated processor, the processes are too slow for the deadlines of a cluster")
    folder = tmp_path_factory.mktemp("cluster")
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(EmbeddedCluster(folder, file_systems=["only"]))
        programs = {"controller": cluster.controller, "tunnel": cluster.tunnel, "node": cluster.node}
        for command, program in programs.items():
            await program.stop()
            container = await stack.enter_async_context(_instead(program, command, folder))
            await _ready(program, container)
        yield cluster


def _instead(program: Program, command: str, folder: Path) -> Any:
    """The same process in a container, with the same settings."""
    settings = {name: text for name, text in program._environment.items() if name not in _NOT_HANDED_ON}
    folders = []
    # Files of root that a pod would get from its service account and its volumes.
    for name in ("KUBECONFIG", "STUNNEL_CONF_PATH", "KUBE_EFS_CA_FILE"):
        if name in settings:
            handed = folder / f"{command}-{name}".lower()
            handed.mkdir()
            original = Path(settings[name])
            if original.exists():
                shutil.copy(original, handed / original.name)
            settings[name] = str(handed / original.name)
            folders.append(handed)
    socket = Path(settings["KUBE_EFS_TUNNEL_SOCKET"])
    if command == "tunnel":
        socket.unlink(missing_ok=True)
        folders.append(socket.parent)
    if command == "node":
        # The socket of the tunnels' agent is in there, and that of the driver, and where it registers.
        folders = [*folders, socket.parents[1]]
    else:
        _hand_over(folders)
    is_node = command == "node"
    return running(_name(command), IMAGE, command, environment=settings, folders=folders, privileged=is_node)


def _hand_over(folders: list[Path]) -> None:
    for folder in folders:
        for path in (folder, *folder.iterdir()):
            os.chown(path, USER, USER)


def _name(command: str) -> str:
    return f"kube-efs-test-{command}-{os.getpid()}"


async def _ready(program: Program, container: Container) -> None:
    async def look() -> bool:
        state = (await container.inspect())["State"]["Status"]
        assert state == "running", await container.logs()
        port = await asyncio.to_thread(_health_port, await container.first_process())
        if port is None:
            return False
        program.health_url = f"http://127.0.0.1:{port}"
        with suppress(aiohttp.ClientError):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{program.health_url}/readyz") as answer,
            ):
                return answer.ok
        return False

    await steps.eventually(look, what=f"{container.name} is ready", pause_seconds=0.3)


def _health_port(first: psutil.Process) -> int | None:
    """What the process has opened instead of port 0. A port that is chosen here could be taken before."""
    for process in _processes(first):
        if not process.name.startswith("stunnel"):
            # Health comes first; the controller serves a page besides.
            for port in listening_ports(process.pid):
                return port
    return None


@dataclass(frozen=True, slots=True)
class _Process:
    """What was read of a process at once, while it was there."""

    pid: int
    name: str
    status: str
    user: int


def _processes(first: psutil.Process) -> list[_Process]:
    """That process, and all below it. Short ones that end meanwhile are left out."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for one in (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess), one.oneshot():
                found.append(_Process(one.pid, one.name(), one.status(), one.uids().real))
    return found


async def test_claim_is_served_and_its_tunnel_is_up(cluster: EmbeddedCluster) -> None:
    namespace = await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(cluster.client, default_file_system_id="auto")
    await cluster.client.create(steps.claim(namespace, "data", storage_class, {"volume_name": "data"}))

    volume = await steps.bound_volume(cluster.client, namespace, "data")

    (file_system,) = cluster.file_system_ids
    assert volume.name.startswith(f"efs-stunnel-{file_system}-{namespace}-data-")
    assert (cluster.efs.folder(file_system) / namespace / "data").is_dir()
    tunnel = await steps.tunnel_up(cluster, file_system)
    assert tunnel.port == await steps.port_of(cluster, file_system)


@pytest.mark.parametrize("command", ["controller", "tunnel"])
async def test_no_process_runs_as_root_or_stays_defunct(cluster: EmbeddedCluster, command: str) -> None:
    first = await Container(_name(command)).first_process()
    assert first.name() == {"controller": "tini", "tunnel": "kube-efs"}[command]
    assert {one.user for one in _processes(first)} == {USER}
    orphan = "import subprocess as s; s.Popen(['sh', '-c', 'sleep 0.1 & :'], start_new_session=True)"
    await podman("exec", _name(command), "/opt/kube-efs/bin/python", "-c", orphan)

    async def look() -> bool:
        return not any(one.name == "sleep" or one.status == psutil.STATUS_ZOMBIE for one in _processes(first))

    await steps.eventually(look, what="every process is buried")


async def test_kubelet_registers_the_driver_of_the_image(cluster: EmbeddedCluster) -> None:
    async def look() -> list[str]:
        found = await cluster.client.get(CSINode, NODE)
        return [driver.name for driver in found.spec.drivers]

    assert await steps.eventually(look, what="the node has a driver") == ["efs.csi.aws.com"]
    first = await Container(_name("node")).first_process()
    assert (first.name(), first.uids().real) == ("tini", 0)


async def test_stunnel_continues_when_the_agent_is_killed(cluster: EmbeddedCluster) -> None:
    (file_system,) = cluster.file_system_ids
    await steps.tunnel_up(cluster, file_system)
    first = await Container(_name("tunnel")).first_process()
    before = await asyncio.to_thread(_stunnels, first)
    assert len(before) == 1
    not_agents = {one.pid for one in _processes(first) if one.name.startswith("stunnel")}
    (agent,) = [one for one in first.children() if one.pid not in not_agents]

    agent.send_signal(signal.SIGKILL)

    await asyncio.to_thread(agent.wait, 60)
    await _ready(cluster.tunnel, Container(_name("tunnel")))
    await steps.tunnel_up(cluster, file_system)
    assert await asyncio.to_thread(_stunnels, first) == before


async def test_share_of_the_relay_in_memory_fits_its_budget(cluster: EmbeddedCluster) -> None:
    socket = str(Path(cluster.tunnel._environment["KUBE_EFS_TUNNEL_SOCKET"]).with_name("relay.sock"))
    relaying = ("/opt/kube-efs/bin/python", "-m", "kube_efs.tunnels.relay.process", socket)
    await podman("exec", "--detach", _name("tunnel"), *relaying)

    async def look() -> psutil.Process | None:
        # Other processes of this machine end at any moment; then these are not read.
        found = [
            one
            for one in psutil.process_iter(["uids", "cmdline"])
            if one.info["uids"].real == USER and socket in (one.info["cmdline"] or ())
        ]
        return next(iter(found), None) if await asyncio.to_thread(Path(socket).exists) else None

    relay = await steps.eventually(look, what="the relay listens")
    # It shares the pages of Python and OpenSSL with the agent.
    share = relay.memory_full_info().pss
    relay.terminate()
    await asyncio.to_thread(relay.wait, 60)
    assert share < _RELAY_BYTES


def _stunnels(first: psutil.Process) -> list[int]:
    return [one.pid for one in _processes(first) if one.name.startswith("stunnel")]


@pytest.mark.parametrize("command", ["node", "controller", "tunnel"])
async def test_container_ends_in_order_on_a_signal(cluster: EmbeddedCluster, command: str) -> None:
    assert await Container(_name(command)).stop() == 0
