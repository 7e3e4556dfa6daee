"""The state of a node on its disk."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from kube_efs.model.efs.ids import FileSystemId, SubnetId, ZoneName
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets, render_json_entry
from kube_efs.tunnels import config_map
from kube_efs.tunnels.config_map import Served, load_served, save_served, with_running
from kube_efs.tunnels.files import previous_path, write_atomically

SUBNET = SubnetId("subnet-a")
FS_1, FS_2 = FileSystemId("fs-1"), FileSystemId("fs-2")
SERVED = Served(
    document=TunnelTargets(
        targets={
            FS_1: TunnelTarget(
                file_system_id=FS_1, port=20490, name="a name", address_by_subnet={SUBNET: "10.0.0.1"}
            )
        },
        zone_by_subnet={SUBNET: ZoneName("us-east-1a")},
    ),
    lingering=(
        TunnelTarget(file_system_id=FS_1, port=20491),
        TunnelTarget(file_system_id=FS_2, port=20492),
    ),
)


def test_stored_targets_include_lingering_tunnels(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_served(path, SERVED)
    assert load_served(path) == SERVED
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "name", ["\U00020000 \U0001d400", "\\ud840\\udc00", "\\\U00020000", "é\u2028\x7f: '\"{#"]
)
def test_stored_targets_can_be_read_whatever_the_names_of_file_systems_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state.json"
    target = TunnelTarget(file_system_id=FS_1, port=20490, name=name)
    served = Served(document=TunnelTargets(targets={FS_1: target}), lingering=(target,))
    save_served(path, served)
    assert load_served(path) == served


def test_missing_file_is_not_logged(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert load_served(tmp_path / "state.json") is None
    assert logs == []


def without(key: str) -> str:
    state = json.loads(saved())
    del state[key]
    return json.dumps(state)


def saved(**changes: object) -> str:
    return json.dumps(
        {"version": 1, "targets": "efs_stunnel_targets: {}", "zones": "", "lingering": [], **changes}
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(saved()[:40], id="truncated"),
        pytest.param("[]", id="list"),
        pytest.param("null", id="nothing"),
        pytest.param(saved(targets="["), id="unreadable targets"),
        pytest.param(saved(targets=7), id="number instead of targets"),
        pytest.param(saved(lingering=7), id="number instead of lingering tunnels"),
        pytest.param(without("version"), id="without a version"),
        pytest.param(without("lingering"), id="without lingering tunnels"),
        pytest.param("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), id="not JSON"),
    ],
)
def test_invalid_file_is_ignored_and_logged(text: str, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with capture_logs() as logs:
        assert load_served(path) is None
    [line] = logs
    assert (line["event"], line["path"]) == ("stored-targets-ignored", str(path))
    assert line["reason"]
    save_served(path, SERVED)
    assert load_served(path) == SERVED


def test_known_parts_of_another_version_are_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_served(path, SERVED)
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2, "news": True}))
    with capture_logs() as logs:
        assert load_served(path) == SERVED
    assert [line["event"] for line in logs] == ["stored-targets-of-another-version"]


def test_state_before_the_last_change_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_served(path, SERVED)
    assert load_served(previous_path(path)) is None
    save_served(path, Served())
    assert load_served(previous_path(path)) == SERVED
    path.write_text(path.read_text()[:20])
    save_served(path, Served())  # a broken file does not replace the good one
    assert load_served(previous_path(path)) == SERVED


def at(fs: str, port: int) -> TunnelTarget:
    return TunnelTarget(file_system_id=FileSystemId(fs), port=port)


def stored(*targets: TunnelTarget, lingering: tuple[TunnelTarget, ...] = (), unused: str = "") -> Served:
    by_id = {one.file_system_id: one for one in targets}
    used = frozenset({FileSystemId(unused)} if unused else ())
    return Served(document=TunnelTargets(targets=by_id, unused=used), lingering=lingering)


@pytest.mark.parametrize(
    ("before", "running", "expected"),
    [
        pytest.param(stored(), [at("fs-1", 1)], stored(at("fs-1", 1)), id="nothing known"),
        pytest.param(stored(at("fs-1", 1)), [at("fs-1", 1)], stored(at("fs-1", 1)), id="the same"),
        pytest.param(stored(at("fs-1", 1)), [], stored(at("fs-1", 1)), id="nothing runs"),
        pytest.param(
            stored(at("fs-1", 1)),
            [at("fs-2", 1)],
            stored(at("fs-1", 1), lingering=(at("fs-2", 1),)),
            id="port of another file system",
        ),
        pytest.param(
            stored(at("fs-1", 1)),
            [at("fs-1", 2)],
            stored(at("fs-1", 1), lingering=(at("fs-1", 2),)),
            id="another port",
        ),
        pytest.param(
            stored(at("fs-1", 1), unused="fs-1"),
            [at("fs-1", 1)],
            stored(at("fs-1", 1), lingering=(at("fs-1", 1),), unused="fs-1"),
            id="unused, but open",
        ),
        pytest.param(
            stored(lingering=(at("fs-1", 1), at("fs-3", 3))),
            [at("fs-2", 1)],
            stored(at("fs-2", 1), lingering=(at("fs-3", 3),)),
            id="port was another one's",
        ),
        pytest.param(
            stored(),
            [at("fs-1", 1), at("fs-1", 2)],
            stored(at("fs-1", 1), lingering=(at("fs-1", 2),)),
            id="two ports of one file system",
        ),
    ],
)
def test_targets_of_running_processes_are_kept(
    before: Served, running: list[TunnelTarget], expected: Served
) -> None:
    assert with_running(before, running) == expected


def test_file_that_is_not_text_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_bytes(b"\xff\xfe\0")
    assert load_served(tmp_path / "state.json") is None


def test_invalid_stored_entry_does_not_affect_the_others(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(
        saved(targets="efs_stunnel_targets: {fs-1: {stunnel_port: 20490}, ../x: {stunnel_port: 20491}}")
    )
    loaded = load_served(path)
    assert loaded is not None
    assert list(loaded.document.targets) == ["fs-1"]
    assert [one.entry for one in loaded.rejections] == ["../x"]


def test_state_is_stored_as_json_and_read_without_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, names = tmp_path / "state.json", [FileSystemId(f"fs-{number}") for number in range(3)]
    targets = {
        name: TunnelTarget(file_system_id=name, port=20490 + number, name="\U0001f600 \\u: {")
        for number, name in enumerate(names)
    }
    served = Served(document=TunnelTargets(targets=targets, unused=frozenset(names[1:])))
    save_served(path, served)
    assert load_served(path) == served
    texts: list[str] = []
    load: Callable[..., object] = yaml.load

    def counted(text: str, **options: object) -> object:
        texts.append(text)
        return load(text, **options)

    monkeypatch.setattr(yaml, "load", counted)
    load_served(path)
    assert [text for text in texts if "fs-" in text] == []


def test_changed_target_renders_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []

    def counted(target: TunnelTarget) -> str:
        rendered.append(target.file_system_id)
        return render_json_entry(target)

    monkeypatch.setattr(config_map, "render_json_entry", counted)
    path, texts = tmp_path / "state.json", config_map.new_texts()
    targets = {
        name: TunnelTarget(file_system_id=name, port=20490 + number)
        for number, name in enumerate(FileSystemId(f"fs-{number}") for number in range(10))
    }
    save_served(path, Served(document=TunnelTargets(targets=targets)), texts=texts)
    rendered.clear()
    changed = FileSystemId("fs-3")
    targets = {**targets, changed: replace(targets[changed], port=30000)}
    served = Served(document=TunnelTargets(targets=targets))
    save_served(path, served, texts=texts)
    assert rendered == [changed]
    assert load_served(path) == served


def test_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("precious")
    path.symlink_to(victim)
    write_atomically(path, "new")
    assert victim.read_text() == "precious"
    assert (path.read_text(), path.is_symlink()) == ("new", False)
