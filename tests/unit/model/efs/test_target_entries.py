"""Documents that are read by the texts of their entries give the same as whole ones."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.efs import targets
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.target_entries import TargetEntries
from kube_efs.model.efs.targets import new_entries, parse_targets
from kube_efs.model.errors import InvalidValue

Read = list[tuple[object, object]] | str

# Ends and beginnings of values that span several entries, and everything that can leave an entry.
ENDS = st.sampled_from(
    [
        "",
        '"',
        "'",
        "]",
        "}",
        "[1,",
        "{a: 1,",
        "&x 1",
        "*x",
        "|",
        ">",
        "# c",
        "!!str 1",
        "1\u2028  fs-7:",
        "1\x85  fs-7:\x85    b: 2",
        "1\r  fs-7: 1",
        "1\u2028k:",
        "\t",
        "k: 1",
    ]
)
LINES = st.lists(
    st.builds("    {}{}{}\n".format, st.sampled_from(["", "a: ", "<<: ", "  "]), ENDS, ENDS),
    min_size=1,
    max_size=2,
)
ENTRIES = st.builds(lambda key, lines: f"  fs-{key}:\n{''.join(lines)}", st.sampled_from("12345"), LINES)
PLAIN = st.builds("  fs-{}:\n    a: {}\n".format, st.sampled_from("123456789"), st.integers(0, 2))
DOCUMENTS = st.lists(PLAIN | PLAIN | ENTRIES, min_size=1, max_size=6).map(
    lambda entries: f"efs_stunnel_targets:\n{''.join(entries)}last_update: '2026-01-31T12:00:00Z'\n"
)


def whole(text: str) -> Read:
    try:
        return list(targets._load_entries(text).items())
    except InvalidValue as error:
        return str(error)


def by_entries(reader: TargetEntries[object], text: str) -> Read:
    try:
        return reader.read(text)
    except InvalidValue as error:
        return str(error)


@given(st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_sequence_of_documents_gives_the_same_as_each_whole_document(documents: list[str]) -> None:
    reader = TargetEntries[object](targets._load_entries, lambda _, entry: entry)
    assert [by_entries(reader, one) for one in documents] == [whole(one) for one in documents]


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(
            [
                ["  fs-1:\n    a: &x 1\n", "  fs-2:\n    b: *x\n"],
                ["  fs-1:\n    a: &x 2\n", "  fs-2:\n    b: *x\n"],
            ],
            id="anchor of another entry",
        ),
        pytest.param(
            [["  fs-1:\n    a: 'x\n", "  fs-2:\n    y'\n", "  fs-3:\n    b: 1\x85  fs-9: 1\n"]],
            id="as many other entries",
        ),
        pytest.param(
            [["  fs-2:\n    b: 1\n"], ["  fs-1:\n    a: 1\u2028k:\n", "  fs-2:\n    b: 1\n"]],
            id="a line break of YAML ends the entries",
        ),
    ],
)
def test_values_beyond_an_entry_are_read_as_they_are(entries: list[list[str]]) -> None:
    documents = [
        f"efs_stunnel_targets:\n{''.join(one)}last_update: '2026-01-31T12:00:00Z'\n" for one in entries
    ]
    reader = TargetEntries[object](targets._load_entries, lambda _, entry: entry)
    found = [by_entries(reader, one) for one in documents]
    assert found == [whole(one) for one in documents]
    assert all(isinstance(one, list) for one in found)


def document(**ports: int) -> str:
    entries = (
        f"  {name}:\n    stunnel_port: {port}\n    mount_target_ip_by_subnet:\n      subnet-1: 10.0.0.1\n"
        for name, port in ports.items()
    )
    return f"efs_stunnel_targets:\n{''.join(entries)}last_update: '2026-01-31T12:00:00Z'\n"


class Counted(TargetEntries[object]):
    """Counts the texts that YAML reads, and the parsed entries."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.parsed: list[object] = []
        super().__init__(self._load_counted, self._parse_counted)

    def _load_counted(self, text: str) -> Mapping[object, object]:
        self.texts.append(text)
        return targets._load_entries(text)

    def _parse_counted(self, key: object, entry: object) -> object:
        self.parsed.append(key)
        return entry


def test_changed_document_parses_only_its_changed_entries() -> None:
    reader, ports = Counted(), {f"fs-{number:x}": 20490 + number for number in range(100)}
    reader.read(document(**ports))
    assert reader.parsed == list(ports)
    del ports["fs-3"]
    ports |= {"fs-7": 30000, "fs-aaa": 30001}
    reader.texts.clear()
    reader.parsed.clear()
    found = reader.read(document(**ports))
    assert reader.parsed == ["fs-7", "fs-aaa"]
    assert [text.count("stunnel_port") for text in reader.texts] == [2]
    assert found == whole(document(**ports))
    assert reader.read(document(**ports)) == found
    assert len(reader.parsed) == 2


def test_unchanged_entries_give_the_same_targets() -> None:
    entries = new_entries()
    before, _ = parse_targets(document(**{"fs-1": 20490, "fs-2": 20491}), entries=entries)
    after, rejections = parse_targets(document(**{"fs-1": 20490, "fs-2": 1}), entries=entries)
    assert after.targets[FileSystemId("fs-1")] is before.targets[FileSystemId("fs-1")]
    assert [one.entry for one in rejections] == ["fs-2"]
    _, again = parse_targets(document(**{"fs-1": 20490, "fs-2": 1}), entries=entries)
    assert again == rejections


@pytest.mark.parametrize("other", [20490, 20491])
def test_port_is_checked_against_entries_that_were_not_parsed_again(other: int) -> None:
    entries = new_entries()
    parse_targets(document(**{"fs-1": 20490, "fs-2": 20492}), entries=entries)
    found, rejections = parse_targets(document(**{"fs-1": 20490, "fs-2": other}), entries=entries)
    assert [one.entry for one in rejections] == (["fs-2"] if other == 20490 else [])
    assert len(found.targets) == 2 - len(rejections)
