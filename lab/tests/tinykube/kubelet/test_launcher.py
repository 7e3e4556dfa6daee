"""The launcher with real namespaces and mounts."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tinykube.kubelet.launch import Bind, Launch
from tinykube.kubelet.nfs import mount_points
from tinykube.kubelet.processes import ContainerProcess, StartFailed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and mounts are root's")

DEVICES = {
    *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm"),
    *("fd", "stdin", "stdout", "stderr"),
}

MakeLaunch = Callable[..., Launch]
# Seconds, which no other run of these tests on this machine has.
NAP = f"1000.{os.getpid()}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def launch(tmp_path: Path) -> MakeLaunch:
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def make(*argv: str, env: dict[str, str] | None = None, **fields: Any) -> Launch:
        environment = {"PATH": "/usr/bin:/bin", **(env or {})}
        return Launch(argv=argv, env=environment, scratch=str(scratch), hidden=str(tmp_path), **fields)

    return make


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    made = tmp_path / "volume"
    made.mkdir()
    return made


async def run(launch: Launch, log: Path) -> tuple[int, str]:
    """The exit code and output; whatever happens, no mount is left."""
    process = await ContainerProcess.start(launch, log)
    async with asyncio.timeout(20):
        code = await process.wait()
    assert mounts_below(Path(launch.scratch)) == []
    return code, await asyncio.to_thread(log.read_text)


async def test_command_is_alone_with_its_init_and_its_environment_is_what_was_given(
    launch: MakeLaunch, log: Path
) -> None:
    script = "echo /proc/[0-9]*; env"
    code, output = await run(launch("sh", "-c", script, env={"A": "b c"}), log)
    processes, *variables = output.splitlines()
    assert code == 0
    assert processes == "/proc/1 /proc/2"
    assert {name.partition("=")[0] for name in variables} <= {"A", "PATH", "PWD", "SHLVL", "_", "OLDPWD"}
    assert "A=b c" in variables


async def test_exit_code_of_a_killed_command_is_that_of_a_shell(launch: MakeLaunch, log: Path) -> None:
    assert (await run(launch("sh", "-c", "kill -9 $$"), log))[0] == 137


async def test_identity(launch: MakeLaunch, log: Path) -> None:
    wanted = launch("sh", "-c", "id -u; id -g; id -G; pwd", uid=1001, gid=1002, groups=(7, 8))
    assert (await run(wanted, log))[1].splitlines() == ["1001", "1002", "1002 7 8", "/"]


async def test_devices_are_few_and_the_machines_dev_is_untouched(launch: MakeLaunch, log: Path) -> None:
    script = "ls /dev; echo x > /dev/null && echo x > /dev/kube-efs && head -c 4 /dev/zero | wc -c"
    code, output = await run(launch("sh", "-c", script), log)
    names = set(output.split()[:-1])
    assert code == 0
    assert names == DEVICES
    assert "kube-efs" not in os.listdir("/dev")  # noqa: PTH208 - no path is wanted


async def test_binds(launch: MakeLaunch, log: Path, volume: Path) -> None:
    (volume / "file").write_text("one")
    binds = (
        Bind(source=str(volume), target="/data/all"),
        Bind(source=str(volume), target="/data/read", read_only=True),
        Bind(source=str(volume / "file"), target="/data/single"),
        Bind(source=str(volume), target="/var/run/part"),
    )
    script = "cat /data/single; echo x > /data/all/made; echo y > /run/part/inner; touch /data/read/x"
    code, output = await run(launch("sh", "-c", script, binds=binds), log)
    assert code == 1
    assert output == "onetouch: cannot touch '/data/read/x': Read-only file system\n"
    assert (volume / "made").read_text() == "x\n"
    assert (volume / "inner").read_text() == "y\n"


async def test_read_only_root_has_writable_volumes(launch: MakeLaunch, log: Path, volume: Path) -> None:
    binds = (Bind(source=str(volume), target="/data"),)
    script = "touch /data/x && touch /etc/x"
    code, output = await run(launch("sh", "-c", script, binds=binds, read_only_root=True), log)
    assert (code, output) == (1, "touch: cannot touch '/etc/x': Read-only file system\n")
    assert (volume / "x").exists()


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("no-such-program",), 'exec: "no-such-program": executable file not found in $PATH'),
        (("/no/such",), 'exec: "/no/such": no such file or directory'),
        (("/etc/passwd",), 'exec: "/etc/passwd": Permission denied'),
    ],
    ids=["not in PATH", "no file", "no program"],
)
async def test_command_that_cannot_be_run(
    launch: MakeLaunch, log: Path, argv: tuple[str, ...], text: str
) -> None:
    with pytest.raises(StartFailed) as caught:
        await ContainerProcess.start(launch(*argv), log)
    assert caught.value.problem == text


async def test_bind_of_nothing(launch: MakeLaunch, log: Path) -> None:
    binds = (Bind(source="/no/such", target="/x"),)
    with pytest.raises(StartFailed) as caught:
        await ContainerProcess.start(launch("true", binds=binds), log)
    assert caught.value.problem == "cannot mount /no/such: No such file or directory"


async def test_term_ends_a_program_that_knows_no_signals(launch: MakeLaunch, log: Path) -> None:
    process = await ContainerProcess.start(launch("sleep", "1000"), log)
    process.terminate()
    async with asyncio.timeout(30):
        assert await process.wait() == 143


async def test_kill_takes_daemons_along(launch: MakeLaunch, log: Path) -> None:
    script = f"trap '' TERM; (setsid sleep {NAP} &) ; echo up; sleep {NAP}"
    process = await ContainerProcess.start(launch("sh", "-c", script), log)
    async with asyncio.timeout(20):
        # Before that, the shell would end by the signal.
        while "up" not in await asyncio.to_thread(log.read_text):  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(0.01)
    process.terminate()
    await process.kill()
    assert await process.wait() == 137
    assert not sleepers()


async def test_cancelled_start_leaves_nothing(launch: MakeLaunch, log: Path) -> None:
    # Those of earlier tests may be gone afterwards.
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    starting = asyncio.create_task(ContainerProcess.start(launch("sleep", NAP), log))
    await asyncio.wait({starting}, timeout=0.02)
    starting.cancel()
    found = await asyncio.gather(starting, return_exceptions=True)
    if isinstance(found[0], ContainerProcess):
        await found[0].kill()
    assert not sleepers()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= children


def test_nothing_outlives_a_killed_kubelet(tmp_path: Path) -> None:
    program = f"""
        import asyncio
        from pathlib import Path
        from tinykube.kubelet.launch import Launch
        from tinykube.kubelet.processes import ContainerProcess

        async def main():
            env = {{"PATH": "/usr/bin:/bin"}}
            launch = Launch(argv=("sleep", "{NAP}"), env=env, scratch="{tmp_path}", hidden="/none")
            await ContainerProcess.start(launch, Path("{tmp_path}.log"))
            print("up", flush=True)
            await asyncio.sleep(100)

        asyncio.run(main())
    """
    deadline = time.monotonic() + 60
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE
    ) as kubelet:
        assert kubelet.stdout is not None
        assert kubelet.stdout.readline() == b"up\n"
        # A process closes its descriptors, by which a start is known, before its command line can be read.
        while len(sleepers()) != 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        kubelet.send_signal(signal.SIGKILL)
        kubelet.wait(30)
    while sleepers():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert mounts_below(tmp_path) == []


def mounts_below(folder: Path) -> list[str]:
    """Those that this machine sees there; elsewhere others may be mounting."""
    return sorted(point for point in mount_points() if Path(point).is_relative_to(folder.resolve()))


def sleepers() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", NAP]]
