"""The program of a worker pod, run as in the pod: its arguments, exit code and message."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.copies import CopyProgress
from kube_efs.model.secrets import text_without_secrets
from kube_efs.model.trash import TrashReport
from kube_efs.provisioning.workers import program
from kube_efs.provisioning.workers.orders import (
    WorkerReport,
    parse_copied,
    parse_progress,
    parse_report,
    parse_trash,
    render_report,
)
from kube_efs.provisioning.workers.program import main
from kube_efs.provisioning.workers.trash import TRASH


class Pod:
    """A mounted file system, and the file from which Kubernetes reads the message."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "efs"
        self.log = folder / "termination-log"
        self.root.mkdir()
        self.log.touch()

    def run(self, action: str, *paths: str, options: tuple[str, ...] = ()) -> int:
        arguments = [action, "--root", str(self.root), *options, "--", *paths]
        return main(arguments, termination_log=self.log)

    @property
    def trash(self) -> Path:
        return self.root / TRASH

    @property
    def message(self) -> str:
        return self.log.read_text(encoding="utf-8")


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_worker_creates_and_removes_directories(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    assert pod.run("make", "/team/a", "/team/b") == 0
    assert pod.message == '{"complete": true, "failed": {}}'
    assert sorted(path.name for path in (pod.root / "team").iterdir()) == ["a", "b"]
    assert (pod.root / "team/a").stat().st_mode & 0o7777 == 0o777
    assert pod.run("remove", "/team/a", "/team/none") == 0
    assert [path.name for path in (pod.root / "team").iterdir()] == ["b"]
    assert capsys.readouterr().out == (
        "make /team/a: done\nmake /team/b: done\nremove /team/a: done\nremove /team/none: done\n"
    )


def test_failure_of_one_item_does_not_affect_others(pod: Pod) -> None:
    (pod.root / "team").mkdir()
    (pod.root / "team/file").touch()
    assert pod.run("make", "/team/a", "/team/file", "relative", "/team/b") == 1
    assert {path.name for path in (pod.root / "team").iterdir()} == {"a", "b", "file"}
    report = parse_report(pod.message)
    assert report == WorkerReport(
        failed={
            "/team/file": "directory: '/team/file' could not be created (Not a directory); "
            "a link or file is in the way; move it",
            "relative": "path: 'relative' is not an absolute path; begin it with /",
        },
        refused=frozenset({"/team/file"}),
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
def test_path_that_looks_like_an_option_is_invalid(pod: Pod, path: str) -> None:
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


def test_base_limits_removals(pod: Pod) -> None:
    pod.run("make", "/base/a", "/other")
    assert pod.run("remove", "/base/a", "/base", "/other", options=("--base", "/base")) == 1
    report = parse_report(pod.message)
    assert report is not None
    assert list(report.failed) == ["/base", "/other"]


def test_mode_is_octal(pod: Pod) -> None:
    assert pod.run("make", "/a", options=("--mode", "0750")) == 0
    assert (pod.root / "a").stat().st_mode & 0o7777 == 0o750


@pytest.mark.parametrize(("options", "mode"), [((), 0o2777), (("--exact",), 0o777)], ids=["kept", "exact"])
def test_setgid_of_an_existing_directory_is_cleared_only_with_exact(
    pod: Pod, options: tuple[str, ...], mode: int
) -> None:
    (pod.root / "a").mkdir()
    (pod.root / "a").chmod(0o2700)
    assert pod.run("make", "/a", options=("--enforce", *options)) == 0
    assert (pod.root / "a").stat().st_mode & 0o7777 == mode


def test_mkdir_sets_the_mode_despite_the_umask(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a crash could happen before this call")

    monkeypatch.setattr(os, "fchmod", refuse)
    former = os.umask(0o077)
    try:
        assert pod.run("make", "/team/a") == 0
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(former)
    assert (pod.root / "team").stat().st_mode & 0o7777 == 0o755
    assert (pod.root / "team/a").stat().st_mode & 0o7777 == 0o777


@pytest.mark.skipif(os.geteuid() != 0, reason="giving directories away needs root")
@pytest.mark.parametrize(
    ("item", "owners"),
    [(":2001:/a", (0, 2001)), ("7::/a", (7, 0)), ("7:8:/a", (7, 8)), ("::/a", (0, 0)), ("/a", (0, 0))],
)
def test_items_have_owners(pod: Pod, item: str, owners: tuple[int, int]) -> None:
    assert pod.run("make", item, options=("--mode", "2771")) == 0
    found = (pod.root / "a").stat()
    assert (found.st_mode & 0o7777, (found.st_uid, found.st_gid)) == (0o2771, owners)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving directories away needs root")
@pytest.mark.parametrize(
    ("options", "gid"), [((), 0), (("--enforce",), 2001)], ids=["not enforced", "enforced"]
)
def test_owners_of_an_existing_directory_change_only_with_enforce(
    pod: Pod, options: tuple[str, ...], gid: int
) -> None:
    (pod.root / "a").mkdir()
    assert pod.run("make", ":2001:/a", options=options) == 0
    assert (pod.root / "a").stat().st_gid == gid


@pytest.mark.parametrize(
    ("item", "path", "reason"),
    [
        ("7:8:/file", "/file", "directory: '/file' could not be created (Not a directory)"),
        ("7:8:/../a", "/../a", "path: '/../a' has a . or .. component"),
        (":4294967295:/a", "/a", "gid: '4294967295' is too large; use at most 4294967294"),
        ("-1::/a", "-1::/a", "path: '-1::/a' is not an absolute path"),
        ("7:/a", "7:/a", "path: '7:/a' is not an absolute path"),
        ("7:8:a", "7:8:a", "path: '7:8:a' is not an absolute path"),
    ],
)
def test_failures_are_reported_by_path(pod: Pod, item: str, path: str, reason: str) -> None:
    (pod.root / "file").touch()
    assert pod.run("make", item) == 1
    report = parse_report(pod.message)
    assert report is not None
    ((found, why),) = report.failed.items()
    assert found == path
    assert why.startswith(reason)


def test_removal_ignores_owners(pod: Pod) -> None:
    (pod.root / "a").mkdir()
    assert pod.run("remove", "7:8:/a") == 1
    assert (pod.root / "a").is_dir()


def test_children_are_in_the_log(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    (pod.root / "base/b").mkdir(parents=True)
    (pod.root / "base/a\u2028\n").mkdir()
    assert pod.run("list", "/base") == 0
    gid = os.getgid()
    assert capsys.readouterr().out.splitlines() == [
        f'{{"name": "a\\u2028\\n", "gid": {gid}}}',
        f'{{"name": "b", "gid": {gid}}}',
        '{"children": 2}',
        "list /base: done",
    ]
    assert pod.message == '{"complete": true, "failed": {}}'


def test_link_is_not_listed(pod: Pod) -> None:
    (pod.root / "link").symlink_to("/")
    assert pod.run("list", "/link") == 1
    report = parse_report(pod.message)
    assert report is not None
    assert list(report.failed) == ["/link"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="no arguments"),
        pytest.param(["make", "--root", "/efs"], id="no path"),
        pytest.param(["make", "/a"], id="no root"),
        pytest.param(["format", "--root", "/efs", "/a"], id="unknown action"),
        pytest.param(["remove", "--root", "/efs", "--base", "../x", "/a"], id="invalid base"),
        pytest.param(["make", "--root", "/efs", "--mode", "rwx", "/a"], id="invalid mode"),
        pytest.param(["make", "--root", "/efs", "--mode", "17777", "/a"], id="mode with too many bits"),
        pytest.param(["make", "--root", "/efs", "--mode=-1", "/a"], id="negative mode"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: kube-efs worker" in capsys.readouterr().err


def test_missing_root_fails_every_directory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    assert main(["make", "--root", str(tmp_path / "none"), "/a", "/b"], termination_log=log) == 1
    report = parse_report(log.read_text())
    assert report is not None
    assert set(report.failed) == {"/a", "/b"}


def test_message_is_not_written_outside_a_pod(tmp_path: Path) -> None:
    log = tmp_path / "none"
    assert main(["make", "--root", str(tmp_path), "/a"], termination_log=log) == 0
    assert not log.exists()


# Secrets are removed, and hypothesis finds their prefixes in the sources.
_REASONS = st.text(max_size=600).filter(lambda text: text_without_secrets(text) == text)
_FAILED = st.dictionaries(st.text(max_size=200), _REASONS, max_size=60)


@given(_FAILED)
def test_message_is_valid_and_within_the_size_limit(failed: dict[str, str]) -> None:
    message = render_report(failed)
    assert len(message.encode()) <= 4096
    report = parse_report(message)
    assert report is not None
    assert report.failed.items() <= {path: reason[:300] for path, reason in failed.items()}.items()
    assert report.complete == (set(report.failed) == set(failed))


@pytest.mark.parametrize("length", range(10, 60, 7))
def test_message_contains_as_many_reasons_as_fit(length: int) -> None:
    failed = {f"/team/{number}": "x" * length for number in range(500)}
    message = render_report(failed)
    assert 4096 - length - 30 < len(message.encode()) <= 4096
    report = parse_report(message)
    assert report is not None
    assert not report.complete


def test_path_omitted_from_the_message_is_not_counted_as_done() -> None:
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
def test_invalid_report_is_refused(message: str) -> None:
    assert parse_report(message) is None


def test_removal_moves_directories_into_the_trash_without_emptying_it(pod: Pod) -> None:
    for name in ("a", "b"):
        (pod.root / f"team/{name}/deep").mkdir(parents=True)
    (pod.root / "team/file").touch()
    assert pod.run("remove", "@4fa1:/team/a", "/team/file", "/team/b", "@4fa1:/team/none") == 1
    report = parse_report(pod.message)
    assert report is not None
    assert list(report.failed) == list(report.refused) == ["/team/file"]
    assert [path.name for path in (pod.root / "team").iterdir()] == ["file"]
    entries = {path.name.partition(".")[0] if "." in path.name else "": path for path in pod.trash.iterdir()}
    assert set(entries) == {"4fa1", ""}
    assert all((entry / "deep").is_dir() for entry in entries.values())


def test_trash_is_emptied_and_the_rest_is_logged(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    assert pod.run("empty", "/") == 0
    assert not pod.trash.exists()
    (pod.trash / "0123456789abcdef0123456789abcdef/deep").mkdir(parents=True)
    assert pod.run("empty", "/") == 0
    assert pod.message == '{"complete": true, "failed": {}}'
    assert list(pod.trash.iterdir()) == []
    (pod.trash / "more/deep").mkdir(parents=True)
    assert pod.run("empty", "/", options=("--total-seconds", "0")) == 0
    assert (pod.trash / "more/deep").is_dir()
    lines = capsys.readouterr().out.splitlines()
    reports = [found for line in lines if (found := parse_trash([line]))]
    assert reports == [TrashReport(), TrashReport(removed=2), TrashReport(entries=1)]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/team", "item: '/team' is not the root of the file system"),
        ("/", "trash directory: '.kube-efs-trash' is not a directory"),
    ],
)
def test_trash_that_cannot_be_emptied_is_a_failure(pod: Pod, path: str, reason: str) -> None:
    pod.trash.touch()
    assert pod.run("empty", path) == 1
    report = parse_report(pod.message)
    assert report is not None
    assert report.failed[path].startswith(reason)


def test_copy_reports_its_progress_and_its_end(
    pod: Pod, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_PROGRESS_SECONDS", 0.0)
    (pod.root / "old").mkdir()
    (pod.root / "old/file").write_text("data")
    assert pod.run("copy", "/new", options=("--source", "/old", "--key", "pvc-1")) == 0
    assert (pod.root / "new/file").read_text() == "data"
    lines = capsys.readouterr().out.splitlines()
    assert parse_progress(lines) == CopyProgress(entries=1, copied_bytes=4)
    copied = parse_copied(pod.message)
    assert copied is not None
    assert copied.progress == CopyProgress(entries=1, copied_bytes=4)


def test_copy_leaves_an_empty_directory_that_others_use(pod: Pod) -> None:
    (pod.root / "old").mkdir()
    (pod.root / "new").mkdir()
    assert pod.run("copy", "/new", options=("--source", "/old", "--key", "pvc-1", "--in-use")) == 1
    report = parse_report(pod.message)
    assert report is not None
    assert "exists and is used by another volume" in report.failed["/new"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--source", "/old"), "copy: '/new' is missing; give --source and --key"),
        (("--key", "a"), "copy: '/new' is missing; give --source and --key"),
        (("--source", "/old", "--key", "a", "--source-owner", "7"), "path: '7:/' is not an absolute path"),
    ],
)
def test_copy_without_its_terms_fails(pod: Pod, options: tuple[str, ...], text: str) -> None:
    assert pod.run("copy", "/new", options=options) == 1
    report = parse_report(pod.message)
    assert report is not None
    assert text in report.failed["/new"]


@pytest.mark.parametrize("key", ["", "..", "a/b", "a\nb"])
def test_key_that_leads_elsewhere_is_invalid(pod: Pod, key: str) -> None:
    with pytest.raises(SystemExit) as caught:
        pod.run("copy", "/new", options=("--source", "/old", "--key", key))
    assert caught.value.code == 2
