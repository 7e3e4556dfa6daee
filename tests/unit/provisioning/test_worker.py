"""The program of a worker pod, run as the pod runs it: arguments in; exit code and message out."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.provisioning.worker import WorkerReport, main, parse_report, render_report


class Pod:
    """A mounted file system and the file that Kubernetes reads the message from."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "efs"
        self.log = folder / "termination-log"
        self.root.mkdir()
        self.log.touch()

    def run(self, action: str, *paths: str, options: tuple[str, ...] = ()) -> int:
        arguments = [action, "--root", str(self.root), *options, "--", *paths]
        return main(arguments, termination_log=self.log)

    @property
    def message(self) -> str:
        return self.log.read_text(encoding="utf-8")


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_make_and_remove(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    assert pod.run("make", "/team/a", "/team/b") == 0
    assert pod.message == '{"complete": true, "failed": {}}'
    assert sorted(path.name for path in (pod.root / "team").iterdir()) == ["a", "b"]
    assert (pod.root / "team/a").stat().st_mode & 0o7777 == 0o777
    assert pod.run("remove", "/team/a", "/team/none") == 0
    assert [path.name for path in (pod.root / "team").iterdir()] == ["b"]
    assert capsys.readouterr().out == (
        "make /team/a: done\nmake /team/b: done\nremove /team/a: done\nremove /team/none: done\n"
    )


def test_one_failure_leaves_the_others(pod: Pod) -> None:
    (pod.root / "team").mkdir()
    (pod.root / "team/file").touch()
    assert pod.run("make", "/team/a", "/team/file", "relative", "/team/b") == 1
    assert {path.name for path in (pod.root / "team").iterdir()} == {"a", "b", "file"}
    report = parse_report(pod.message)
    assert report == WorkerReport(
        failed={
            "/team/file": "directory: '/team/file' could not be made (Not a directory); "
            "a link or file is in the way; move it",
            "relative": "path: 'relative' is not an absolute path; begin it with /",
        },
        complete=True,
    )


@pytest.mark.parametrize(
    "path", ["/-rf", "/--root=x", "/$(touch pwned)", "/a; rm -rf *", "/`id`", "/*", "/'\""]
)
def test_names_are_taken_literally(pod: Pod, path: str) -> None:
    assert pod.run("make", path) == 0
    assert [f"/{found.name}" for found in pod.root.iterdir()] == [path]
    assert pod.run("remove", path) == 0
    assert [found.name for found in pod.root.iterdir()] == [".kube-efs-trash"]


@pytest.mark.parametrize("path", ["-rf", "--root=/", "--help", ""])
def test_what_looks_like_an_option_is_a_bad_path(pod: Pod, path: str) -> None:
    assert pod.run("remove", path) == 1
    report = parse_report(pod.message)
    assert report is not None
    assert list(report.failed) == [path]


@pytest.mark.parametrize("path", ["/../outside", "/team/../../outside", "/", "/team\n", "/.kube-efs-trash"])
def test_nothing_outside_is_removed(pod: Pod, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").mkdir()
    (pod.root / "team").mkdir()
    assert pod.run("remove", path) == 1
    assert (tmp_path / "outside").is_dir()
    assert (pod.root / "team").is_dir()


def test_the_base_bounds_removals(pod: Pod) -> None:
    pod.run("make", "/base/a", "/other")
    assert pod.run("remove", "/base/a", "/base", "/other", options=("--base", "/base")) == 1
    report = parse_report(pod.message)
    assert report is not None
    assert list(report.failed) == ["/base", "/other"]


def test_the_mode_is_octal(pod: Pod) -> None:
    assert pod.run("make", "/a", options=("--mode", "0750")) == 0
    assert (pod.root / "a").stat().st_mode & 0o7777 == 0o750


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="nothing"),
        pytest.param(["make", "--root", "/efs"], id="no path"),
        pytest.param(["make", "/a"], id="no root"),
        pytest.param(["format", "--root", "/efs", "/a"], id="another action"),
        pytest.param(["remove", "--root", "/efs", "--base", "../x", "/a"], id="a bad base"),
        pytest.param(["make", "--root", "/efs", "--mode", "rwx", "/a"], id="a bad mode"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: kube-efs worker" in capsys.readouterr().err


def test_no_file_system_is_a_failure_of_every_directory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    assert main(["make", "--root", str(tmp_path / "none"), "/a", "/b"], termination_log=log) == 1
    report = parse_report(log.read_text())
    assert report is not None
    assert set(report.failed) == {"/a", "/b"}


def test_outside_a_pod_nobody_reads_the_message(tmp_path: Path) -> None:
    log = tmp_path / "none"
    assert main(["make", "--root", str(tmp_path), "/a"], termination_log=log) == 0
    assert not log.exists()


_FAILED = st.dictionaries(st.text(max_size=200), st.text(max_size=600), max_size=60)


@given(_FAILED)
def test_the_message_fits_and_can_be_read_whatever_failed(failed: dict[str, str]) -> None:
    message = render_report(failed)
    assert len(message.encode()) <= 4096
    report = parse_report(message)
    assert report is not None
    assert report.failed.items() <= {path: reason[:300] for path, reason in failed.items()}.items()
    assert report.complete == (set(report.failed) == set(failed))


@pytest.mark.parametrize("length", range(10, 60, 7))
def test_as_many_reasons_are_given_as_there_is_room_for(length: int) -> None:
    failed = {f"/team/{number}": "x" * length for number in range(500)}
    message = render_report(failed)
    assert 4096 - length - 30 < len(message.encode()) <= 4096
    report = parse_report(message)
    assert report is not None
    assert not report.complete


def test_a_path_that_has_no_room_is_not_taken_for_done() -> None:
    report = parse_report(render_report({"/" + "é" * 2000: "why"}))
    assert report == WorkerReport(failed={}, complete=False)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Killed",
        "{",
        "[]",
        "7",
        "null",
        json.dumps({"failed": {}}),
        json.dumps({"complete": True}),
        json.dumps({"complete": True, "failed": ["/a"]}),
        json.dumps({"complete": True, "failed": {"/a": "x"}})[:-5],
    ],
)
def test_what_is_no_report(message: str) -> None:
    assert parse_report(message) is None
