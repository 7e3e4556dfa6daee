"""Real processes that fail in every way: they print only log lines without secrets."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

_SECRET = "IQoJb3JpZ2luX2VjEJr" + "aB3dE5gH7j" * 70  # longer than any message is

_START = """
import asyncio, atexit, gc, logging, threading
from kube_efs.signals import run_until_stopped
from kube_efs.telemetry.logging import configure
from kube_efs.telemetry.uncaught import catch_uncaught

SECRET = "IQoJb3JpZ2luX2VjEJr" + "aB3dE5gH7j" * 70

def fail(*_):
    raise ValueError(f"DB_PASS={SECRET} and <SessionToken>{SECRET}</SessionToken>")

catch_uncaught()
"""
_CONFIGURE = 'configure("DEBUG")\n'

_WAYS = {
    "at the start": "fail()",
    "in a thread": "thread = threading.Thread(target=fail, name='worker'); thread.start(); thread.join()",
    "in a destructor": "class Thing:\n    __del__ = fail\nThing()",
    "at the exit": "atexit.register(fail)",
    "in the work": "async def work(): fail()\nasyncio.run(run_until_stopped(work()))",
    "in a callback": """
        async def work():
            asyncio.get_running_loop().call_soon(fail)
            await asyncio.sleep(0.01)
        asyncio.run(run_until_stopped(work()))""",
    "in a task that is not awaited": """
        async def part(): fail()
        async def work():
            task = asyncio.create_task(part())
            await asyncio.wait([task])
            del task
            gc.collect()
        asyncio.run(run_until_stopped(work()))""",
    "in a group of tasks": """
        async def part(): fail()
        async def work():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(part())
                tasks.create_task(part())
        asyncio.run(run_until_stopped(work()))""",
    "with a cause": """
        try:
            fail()
        except ValueError as error:
            raise KeyError(SECRET) from error""",
    "with notes": """
        try:
            fail()
        except ValueError as error:
            error.add_note(f"token: |\\n  {SECRET}\\n  {SECRET}")
            raise""",
    "with an exception that has no text": """
        class Bad(Exception):
            def __str__(self): fail()
        raise Bad(SECRET)""",
    "in a line of the log": "logging.getLogger('x').info('%d', SECRET)\nfail()",
}


@pytest.mark.parametrize("configure", ["", _CONFIGURE], ids=["before logs are set up", "afterwards"])
@pytest.mark.parametrize("way", _WAYS.values(), ids=_WAYS.keys())
def test_uncaught_exception_is_logged_without_secrets(way: str, configure: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_START + configure + textwrap.dedent(way))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)

    assert ended.stdout == ""
    assert "aB3dE5gH" not in ended.stderr
    lines = [json.loads(line) for line in ended.stderr.splitlines()]  # only lines of the log
    errors = [line for line in lines if line["logger"] == "kube_efs.uncaught"]
    assert errors
    assert all(line["level"] == "error" for line in errors)
    text = "".join(str(line.get("exception", "")) for line in errors)
    assert ("in fail" in text and "ValueError: DB_PASS=[removed]" in text) or "Bad: <exception str()" in text


def test_failed_command_prints_no_python_traceback(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        _START.replace("catch_uncaught()", "")
        + "import sys\nfrom kube_efs import cli\nfrom kube_efs.__main__ import main\n"
        + "cli._finish = fail\nfrom kube_efs.kube import client\nclient.load_config = lambda _: None\n"
        + "sys.argv = ['kube-efs', 'status']\nsys.exit(main())\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)

    assert ended.returncode == 1
    assert "aB3dE5gH" not in ended.stderr + ended.stdout
    (line,) = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert "ValueError: DB_PASS=[removed]" in line["exception"]
    assert "Traceback" not in ended.stderr.replace(json.dumps(line["exception"])[1:-1], "")


def test_failed_worker_prints_no_python_traceback(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        _START.replace("catch_uncaught()", "")
        + textwrap.dedent(f"""
            import sys
            from pathlib import Path
            from kube_efs.__main__ import main
            from kube_efs.provisioning.workers import file_system, program
            file_system.make_directory = fail
            program.main.__kwdefaults__["termination_log"] = Path({str(tmp_path / "end")!r})
            sys.argv = ["kube-efs", "worker", "make", "--root", {str(tmp_path)!r}, "--", "/a", "/b"]
            sys.exit(main())
            """)
    )
    (tmp_path / "end").touch()
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)

    assert ended.returncode == 1
    told = (tmp_path / "end").read_text()
    assert "aB3dE5gH" not in ended.stderr + ended.stdout + told
    reason = "internal error (ValueError); the log has the details"
    assert json.loads(told)["failed"] == {"/a": reason, "/b": reason}
    assert ended.stdout.splitlines() == [f"make /a: {reason}", f"make /b: {reason}"]
    assert len([json.loads(line) for line in ended.stderr.splitlines()]) == 2
