"""A node: a guest of User Mode Linux with containerd, a kubelet, and a disk that outlives its reboots."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml
from tests.conformance.programs import PROGRAMS
from tests.kernel.uml import KERNEL, kernel_environment
from tests.kubelet import images, network

_HERE = Path(__file__).parent
_DISK_BYTES = 4 << 30
_MEMORY = "mem=3G"
_AGENT_PORT = 7000
_BOOT_SECONDS = 300.0
_COMMAND_SECONDS = 300.0
_PAUSE_SECONDS = 0.2
_PODS = "/var/lib/kubelet/pods"


class CommandFailed(AssertionError):
    """A command on the node ended with a status other than 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a command; errors are part of the output."""

    status: int
    output: str


class Node:
    """The node while its context is open; ``folder`` has its configuration, its disk and all its logs.

    The ``archives`` have the images that the node has pulled; the ``provider_id`` names its instance in EC2.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        kubeconfig: Path,
        api_server_ca: Path,
        archives: Sequence[Path],
        provider_id: str,
    ) -> None:
        self.name = name
        self.folder = folder
        self._archives = archives
        self._kubeconfig = kubeconfig
        self._provider_id = provider_id
        self._api_server_ca = api_server_ca
        self._machine: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._configure()
        await self._make_disk()
        await self.boot()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut_power()
        (self.folder / "disk").unlink()

    async def boot(self) -> None:
        """Start the machine; returns when it takes commands."""
        kernel = [
            *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", _MEMORY, f"init={_HERE / 'boot'}"),
            f"ubd0={self.folder / 'disk'}",
            f"vec0:transport=tap,ifname={network.TAP},depth=128,gro=1",
            *("con=null", "con0=fd:0,fd:1", "quiet"),
        ]
        environment = await asyncio.to_thread(kernel_environment)
        with (self.folder / "console.log").open("ab") as console:
            self._machine = await asyncio.create_subprocess_exec(
                KERNEL,
                *kernel,
                "--",
                str(self.folder),
                self.name,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,  # a guest's processes are the host's, too
            )
        async with asyncio.timeout(_BOOT_SECONDS):
            while True:
                assert self._machine.returncode is None, (self.folder / "console.log").read_text()
                with suppress(OSError, CommandFailed):
                    await self.run("ctr", "version")
                    return
                await asyncio.sleep(_PAUSE_SECONDS)

    async def cut_power(self) -> None:
        """End the machine at once; what it has not written to its disk is lost."""
        if self._machine is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._machine.pid, signal.SIGKILL)
            await self._machine.wait()
            self._machine = None

    async def run(self, *command: str, seconds: float = _COMMAND_SECONDS) -> str:
        """The output of a command on the node; raises CommandFailed, or OSError while the node is down."""
        done = await self.try_run(*command, seconds=seconds)
        if done.status:
            raise CommandFailed(f"{' '.join(command)}: {done.output} (status {done.status})")
        return done.output

    async def try_run(self, *command: str, seconds: float = _COMMAND_SECONDS) -> Done:
        """The result of a command on the node; raises OSError while the node is down."""
        async with asyncio.timeout(seconds + 10):
            reader, writer = await asyncio.open_connection(str(network.NODE.ip), _AGENT_PORT, limit=1 << 26)
            try:
                writer.write(json.dumps({"command": command, "seconds": seconds}).encode() + b"\n")
                line = await reader.readline()
            finally:
                writer.close()
        if not line:
            raise ConnectionResetError("the node gave no answer")
        return Done(**json.loads(line))

    async def kill(self, *programs: str) -> None:
        """End these programs as a crash would; the node starts kubelet and containerd again."""
        await self.run("pkill", "-KILL", "-x", "|".join(programs))

    async def processes(self, program: str) -> list[int]:
        """The processes of a program; none while the node is down."""
        try:
            return [int(one) for one in (await self.try_run("pgrep", "-x", program)).output.split()]
        except OSError:
            return []

    async def pod_directories(self) -> set[str]:
        """The uids of all pods that the kubelet has a directory for."""
        return set((await self.run("ls", _PODS)).split())

    async def describe_pod_directory(self, uid: str) -> str:
        """What is in the directory of a pod, what is mounted there, and what the kubelet logged about it."""
        found = await self.try_run("find", f"{_PODS}/{uid}", "-xdev")
        mounts = await self.run("cat", "/proc/mounts")
        log = (self.folder / "kubelet.log").read_text(errors="replace")
        lines = [line for line in (mounts + log).splitlines() if uid in line]
        return "\n".join([f"--- directory of pod {uid}", found.output, *lines])

    def log(self) -> str:
        """The ends of the node's logs."""
        ends = [
            f"--- {one.name}\n{one.read_text(errors='replace')[-4000:]}" for one in self.folder.glob("*.log")
        ]
        return "\n".join(ends)

    def _configure(self) -> None:
        self.folder.mkdir(parents=True)
        kubelet = (PROGRAMS / "kubelet").resolve()
        settings = {
            "ADDRESS": network.NODE,
            "GATEWAY": network.GATEWAY.ip,
            "PROGRAMS": kubelet.parent,
            "KUBELET": kubelet.name,
        }
        text = "".join(f"{name}='{value}'\n" for name, value in settings.items())
        (self.folder / "settings").write_text(text)
        shutil.copy(_HERE / "agent", self.folder)
        shutil.copy(_HERE / "containerd.toml", self.folder)
        shutil.copy(self._kubeconfig, self.folder / "kubeconfig")
        shutil.copy(self._api_server_ca, self.folder / "ca.crt")
        (self.folder / "kubelet.yaml").write_text(
            yaml.safe_dump(_KUBELET | {"providerID": self._provider_id})
        )
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(_POD_NETWORK))

    async def _make_disk(self) -> None:
        content = self.folder / "content"
        content.mkdir()
        await images.unpack(self._archives, content / "containerd")
        disk = self.folder / "disk"
        with disk.open("wb") as file:
            file.truncate(_DISK_BYTES)
        make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-d", str(content), str(disk)]
        await asyncio.to_thread(lambda: subprocess.run(make, check=True, timeout=_BOOT_SECONDS))
        shutil.rmtree(content)


_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "authentication": {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": True},
        "x509": {"clientCAFile": "/run/node/ca.crt"},
    },
    # The API server's certificate is of the node's own authority, and nobody else has one.
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    # Pods do not get all memory: without any for its own programs, a node would only read them again and
    # again. What the pods of the tests need is much less, and a test that fills it must not take long.
    "enforceNodeAllocatable": ["pods"],
    "systemReserved": {"memory": "1600Mi"},
    "failSwapOn": False,
    "makeIPTablesUtilChains": False,
    "resolvConf": "",
    "clusterDNS": [str(network.SERVICES[10])],
    # No eviction for want of disk space: what happens without is for the tests to see.
    "evictionHard": {
        "memory.available": "100Mi",
        **dict.fromkeys(("nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"),
    },
    "evictionPressureTransitionPeriod": "10s",
    "registerWithTaints": [{"key": "efs.csi.aws.com/agent-not-ready", "effect": "NoExecute"}],
    "nodeStatusUpdateFrequency": "5s",
}
_POD_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": str(network.PODS)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}
