import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinykube.kubelet.logs import last_bytes, read_log, seek_last_lines


@dataclass
class Source:
    path: Path
    finished: bool = True


async def read(source: Source, *, follow: bool = False, tail_lines: int | None = None) -> bytes:
    chunks = read_log(source.path, lambda: source.finished, follow=follow, tail_lines=tail_lines)
    return b"".join([chunk async for chunk in chunks])


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, b"a\nb\nc\n"), (0, b""), (1, b"c\n"), (2, b"b\nc\n"), (3, b"a\nb\nc\n"), (9, b"a\nb\nc\n")],
)
async def test_tail(tmp_path: Path, count: int | None, text: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\nb\nc\n")
    assert await read(Source(path), tail_lines=count) == text


async def test_no_log_is_empty(tmp_path: Path) -> None:
    assert await read(Source(tmp_path / "none")) == b""


async def test_following_ends_when_the_container_has_and_misses_nothing(tmp_path: Path) -> None:
    source = Source(tmp_path / "log", finished=False)
    source.path.write_bytes(b"first\n")
    following = asyncio.create_task(read(source, follow=True))
    await asyncio.wait({following}, timeout=0.15)
    assert not following.done()
    with source.path.open("ab") as file:
        file.write(b"last\n")
    source.finished = True
    async with asyncio.timeout(60):
        assert await following == b"first\nlast\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(data=st.binary(max_size=300).map(lambda data: data.replace(b"\r", b"")), count=st.integers(1, 20))
def test_tail_is_the_last_lines_of_any_text(tmp_path: Path, data: bytes, count: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    with path.open("rb") as file:
        seek_last_lines(file, count)
        found = file.read()
    lines = data.split(b"\n")
    ends = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    assert found == b"".join(ends[-count:])


def test_end_of_a_log_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first\nlast\n")
    assert last_bytes(path, 5) == "last\n"
    assert last_bytes(path, 100) == "first\nlast\n"
    assert last_bytes(tmp_path / "none", 1) == ""
