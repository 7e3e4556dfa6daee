"""The arguments of a worker, and the lines of its log."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.strategies import file_names

from kube_efs.model.copies import Copied, CopyProgress, CopyTerms, FileOwner
from kube_efs.model.efs.directories import Directory, FoundDirectory, parse_directory
from kube_efs.model.errors import InvalidValue
from kube_efs.model.trash import StuckEntry, TrashReport
from kube_efs.provisioning.workers.orders import (
    Action,
    EmptyingTerms,
    Item,
    Job,
    PodOrder,
    parse_children,
    parse_copied,
    parse_item,
    parse_order,
    parse_owner,
    parse_progress,
    parse_trash,
    path_in,
    render_arguments,
    render_children,
    render_copied,
    render_progress,
    render_trash,
)
from kube_efs.provisioning.workers.pod_objects import _escaped
from tinykube.kubelet.containers import expand

_DIRECTORIES = st.lists(file_names(max_size=20), max_size=4).map(lambda names: Directory(tuple(names)))
_A, _B = Directory(("a",)), Directory(("b",))
_OWNERS = st.none() | st.integers(0, 2**32 - 2)
_TENANTS = st.from_regex(r"[a-z0-9]{0,12}", fullmatch=True)
_ITEMS = st.builds(Item, directory=_DIRECTORIES, uid=_OWNERS, gid=_OWNERS, tenant=_TENANTS)


@given(_ITEMS)
def test_item_is_not_changed_by_the_command_line_and_kubernetes(item: Item) -> None:
    text = str(item)
    (escaped,) = _escaped([text])
    assert expand(escaped, {"HOME": "/root", "": "x"}) == text
    assert parse_item(text) == item
    assert path_in(text) == str(item.directory)


@pytest.mark.parametrize(
    "path", ["/$(HOME)", "/$$(HOME)", "/$", "/$$", "/a$HOME", "/$(HOME", "/$()", "/$$$(HOME)"]
)
def test_kubernetes_expands_no_variable_in_an_escaped_path(path: str) -> None:
    (escaped,) = _escaped([path])
    assert expand(escaped, {"HOME": "/root", "": "x"}) == path


@pytest.mark.parametrize(
    ("job", "item", "arguments"),
    [
        pytest.param(
            Job(action=Action.MAKE),
            Item(directory=Directory(("a",))),
            ["worker", "make", "--root", "/efs", "--", "/a"],
            id="plain",
        ),
        pytest.param(
            Job(action=Action.MAKE, mode=0o2771, enforced=True),
            Item(directory=Directory(("a",)), gid=2001),
            ["worker", "make", "--root", "/efs", "--mode", "2771", "--enforce", "--", ":2001:/a"],
            id="own group",
        ),
        pytest.param(
            Job(action=Action.MAKE, enforced=True, exact=True),
            Item(directory=Directory(("a",))),
            ["worker", "make", "--root", "/efs", "--enforce", "--exact", "--", "/a"],
            id="open to everybody",
        ),
        pytest.param(
            Job(action=Action.MAKE, mode=0o50),
            Item(directory=Directory(("a",)), uid=0, gid=0),
            ["worker", "make", "--root", "/efs", "--mode", "0050", "--", "0:0:/a"],
            id="owners 0",
        ),
        pytest.param(
            Job(action=Action.REMOVE),
            Item(directory=Directory(("a",))),
            ["worker", "remove", "--root", "/efs", "--", "/a"],
            id="removal",
        ),
        pytest.param(
            Job(action=Action.REMOVE, base=Directory(("base",))),
            Item(directory=Directory(("base", "a"))),
            ["worker", "remove", "--root", "/efs", "--base", "/base", "--", "/base/a"],
            id="removal below a base",
        ),
        pytest.param(
            Job(action=Action.REMOVE),
            Item(directory=Directory(("a",)), tenant="4fa1"),
            ["worker", "remove", "--root", "/efs", "--", "@4fa1:/a"],
            id="removal for a tenant",
        ),
        pytest.param(
            Job(action=Action.EMPTY, emptying=EmptyingTerms(seconds=200)),
            Item(directory=Directory()),
            ["worker", "empty", "--root", "/efs", "--total-seconds", "200", "--", "/"],
            id="trash",
        ),
        pytest.param(
            Job(action=Action.LIST),
            Item(directory=Directory()),
            ["worker", "list", "--root", "/efs", "--", "/"],
            id="list",
        ),
    ],
)
def test_job_is_rendered_as_arguments(job: Job, item: Item, arguments: list[str]) -> None:
    assert render_arguments(job, [item], root="/efs") == arguments


@pytest.mark.parametrize("field", ["uid", "gid"])
def test_owner_4294967295_is_refused(field: str) -> None:
    text = "4294967295::/a" if field == "uid" else ":4294967295:/a"
    with pytest.raises(InvalidValue) as caught:
        parse_item(text)
    assert (caught.value.field, caught.value.value) == (field, "4294967295")


@pytest.mark.parametrize("path", ["/7:8:/a", "/@4fa1:/a"])
def test_path_with_colons_has_neither_owners_nor_tenant(path: str) -> None:
    assert parse_item(path) == Item(directory=parse_directory(path))


@pytest.mark.parametrize("tenant", ["Team", "a.b", "../a", "a/b", "a:b", "a" * 13, "é", "a\n"])
def test_invalid_tenant_is_refused(tenant: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Item(directory=Directory(("a",)), tenant=tenant)
    assert (caught.value.field, caught.value.value) == ("tenant", tenant)
    with pytest.raises(InvalidValue):
        parse_item(f"@{tenant}:/a")


_CHILDREN = st.lists(
    st.builds(
        FoundDirectory,
        name=st.text(st.characters(codec=None, exclude_characters="/\0"), min_size=1),
        gid=st.integers(0, 2**32 - 1),
    ),
    max_size=8,
)


@given(_CHILDREN)
def test_children_are_read_back_from_the_log(children: list[FoundDirectory]) -> None:
    lines = list(render_children(children))
    assert all(line.isascii() and len(line.splitlines()) == 1 for line in lines)
    noise = ["list /base: done", "", json.dumps({"event": "x"}), "[]", "7"]
    assert parse_children([*noise, *lines, *noise]) == tuple(children)


@given(_CHILDREN, st.data())
def test_truncated_log_is_detected(children: list[FoundDirectory], data: st.DataObject) -> None:
    lines = list(render_children(children))
    del lines[data.draw(st.integers(0, len(children)))]
    assert parse_children(lines) is None


_TEXTS = st.text(st.characters(codec=None))
_REPORTS = st.builds(
    TrashReport,
    entries=st.integers(0, 10**9),
    stuck=st.integers(0, 10**9),
    removed=st.integers(0, 10**9),
    examples=st.lists(st.builds(StuckEntry, entry=_TEXTS, path=_TEXTS, reason=_TEXTS), max_size=3).map(tuple),
)


@given(_REPORTS)
def test_trash_report_is_read_back_from_the_log(report: TrashReport) -> None:
    line = render_trash(report)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    noise = ["empty /: done", "", json.dumps({"trash": "x"}), "[]", "7"]
    assert parse_trash([*noise, line, *noise]) == report
    assert parse_trash(noise) is None


_KEYS = st.from_regex(r"[a-z][a-z0-9.-]{0,60}", fullmatch=True)
_COPIES = st.builds(
    CopyTerms,
    key=_KEYS,
    source=_DIRECTORIES.filter(lambda one: not one.is_root),
    owner=st.none() | st.builds(FileOwner, uid=st.integers(0, 2**32 - 2), gid=st.integers(0, 2**32 - 2)),
    may_be_missing=st.booleans(),
    maps_owner=st.booleans(),
    in_use=st.booleans(),
)


@given(_COPIES, _DIRECTORIES)
def test_order_of_a_copy_is_in_its_arguments(terms: CopyTerms, target: Directory) -> None:
    job = Job(action=Action.COPY, copying=terms)
    arguments = render_arguments(job, [Item(directory=target)], root="/efs")
    order = PodOrder(action=Action.COPY, directories=(target,), source=terms.source)
    assert parse_order(arguments) == order


def test_arguments_of_a_copy_are_options() -> None:
    owner = FileOwner(uid=7, gid=8)
    terms = CopyTerms(
        key="pvc-1",
        source=parse_directory("/a"),
        owner=owner,
        may_be_missing=True,
        maps_owner=True,
        in_use=True,
    )
    job = Job(action=Action.COPY, copying=terms)
    text = " ".join(render_arguments(job, [Item(directory=parse_directory("/b"))], root="/efs"))
    options = "--key pvc-1 --source /a --source-owner 7:8 --source-may-be-missing --map-owner --in-use"
    assert text == f"worker copy --root /efs {options} -- /b"
    assert parse_owner("7:8") == owner


@pytest.mark.parametrize("text", ["", "7", "7:", ":8", "a:b", "7:8:9", "-1:2", "7:4294967295"])
def test_invalid_owner_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_owner(text)


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        ("worker make --root /efs -- /a :7:/b", PodOrder(action=Action.MAKE, directories=(_A, _B))),
        ("worker copy --root /efs --source -- /a", PodOrder(action=Action.COPY)),
        ("worker copy --root /efs --source a -- /a", PodOrder(action=Action.COPY)),
        ("worker remove --root /efs -- a", PodOrder(action=Action.REMOVE)),
        ("worker improve --root /efs -- /a", PodOrder()),
        ("worker make", PodOrder()),
        ("", PodOrder()),
    ],
)
def test_order_is_unknown_as_far_as_its_arguments_are(arguments: str, order: PodOrder) -> None:
    assert parse_order(arguments.split()) == order


_PROGRESS = st.builds(CopyProgress, entries=st.integers(0, 10**12), copied_bytes=st.integers(0, 10**18))


@given(st.lists(_PROGRESS, max_size=3), st.floats(0, 4e9))
def test_progress_of_a_copy_is_in_the_log_and_its_end_in_the_message(
    reports: list[CopyProgress], finished: float
) -> None:
    lines = ["copy /b: started", *map(render_progress, reports)]
    assert parse_progress(lines) == (reports[-1] if reports else None)
    end = Copied(progress=CopyProgress(entries=1, copied_bytes=2), finished=finished)
    assert parse_copied(render_copied(end)) == end
    assert [parse_copied(one) for one in lines] == [None] * len(lines)
