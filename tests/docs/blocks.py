"""The fenced blocks of a page, and their markers.

::

    ```console            a session: what follows ``$ `` is run (``> `` continues it), and each other line
    $ kubectl get pv      is output: some line of what came out, in this order. ``…`` stands for anything,
    NAME   …              and white space for any of it
    ```

    <!-- not run: needs a cluster of OpenShift -->
    ```sh                 shell that is not run, or a session. Without the reason, the page fails
    oc get nodes
    ```

    <!-- as in: docs/install.md -->
    ```console            not run again: a session of that page has its commands, perhaps with more words

    <!-- run by: tests/conformance/test_helm_chart.py -->
    ```console            that test takes the commands from the page, and runs them; or manifests (``yaml``)

    <!-- file: claim.yaml -->
    ```yaml               written to that file in the directory of the page's sessions
    ```

    <!-- given: older-system -->
    ```console            run after tests/docs/given/older-system.sh, which prepares what the reader has
    ```
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SESSION = "console"
SHELL = "sh"
# Languages of blocks that are not for a shell; drawings and answers are text.
_OTHERS = frozenset({"ini", "json", "promql", "python", "text", "yaml"})
_COMMENT = re.compile(r"<!-- (not run|as in|run by|file|given): (.+?) -->")
_ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(_ROOT).as_posix()
    for path in [*(_ROOT / "docs").rglob("*.md"), _ROOT / "README.md", _ROOT / "CONTRIBUTING.md"]
)
_FENCE = re.compile(r"(?P<indent> *)```(?P<language>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a session, and its documented output."""

    text: str
    shown: tuple[str, ...] = ()

    def is_part_of(self, other: "Command") -> bool:
        """Whether the other command contains all its words in this order."""
        words = iter(other.text.replace("\\\n", " ").split())
        return all(word in words for word in self.text.replace("\\\n", " ").split())

    def missing(self, output: str) -> list[str]:
        """The documented lines that are missing in the output; each is searched after the previous one."""
        printed = [" ".join(line.split()) for line in output.splitlines()]
        missing = []
        for line in self.shown:
            pattern = re.compile(re.escape(" ".join(line.split())).replace("…", ".*"))
            found = next((at for at, text in enumerate(printed) if pattern.fullmatch(text)), None)
            if found is None:
                missing.append(line)
            else:
                printed = printed[found + 1 :]
        return missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block; ``reason`` is why it is not run, ``file`` its file name, ``given`` its preparation.

    ``elsewhere`` is a page whose sessions also have its commands; ``runner`` is a test that runs them.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str = ""
    elsewhere: str = ""
    runner: str = ""
    file: str = ""
    given: str = ""

    @property
    def is_run(self) -> bool:
        """Whether its commands are run with the others of the page."""
        return self.language == SESSION and not (self.reason or self.elsewhere or self.runner)

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands of a session."""
        found: list[Command] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(Command(text=line[2:]))
            elif found and line.startswith("> ") and not found[-1].shown:
                found[-1] = Command(text=f"{found[-1].text}\n{line[2:]}")
            elif found and line.strip():
                found[-1] = Command(text=found[-1].text, shown=(*found[-1].shown, line))
        return tuple(found)

    @property
    def problem(self) -> str:
        """The problem of its markers; empty without one."""
        if self.language == SESSION:
            return "" if self.reason or self.commands else "a session has a line that begins with $"
        if self.language == SHELL:
            return "" if self.reason else "say above why it is not run, or make it a session (console)"
        if self.language not in _OTHERS:
            return f"{self.language or 'no language'} is not one of {', '.join(sorted(_OTHERS))}"
        return "it is no command, so leave out why it is not run" if self.reason else ""


def read_blocks(page: str, text: str) -> Iterator[Block]:
    """The blocks in the text of a page of that name."""
    lines = text.splitlines()
    start: re.Match[str] | None = None
    opened = 0
    for number, line in enumerate(lines):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            continue
        if start is None:
            start, opened = fence, number
            continue
        indent = len(start["indent"])
        mark = _COMMENT.fullmatch(lines[opened - 1].strip()) if opened else None
        yield Block(
            page=page,
            line=opened + 1,
            language=start["language"],
            text="".join(f"{one[indent:]}\n" for one in lines[opened + 1 : number]),
            reason=mark[2] if mark and mark[1] == "not run" else "",
            elsewhere=mark[2] if mark and mark[1] == "as in" else "",
            runner=mark[2] if mark and mark[1] == "run by" else "",
            file=mark[2] if mark and mark[1] == "file" else "",
            given=mark[2] if mark and mark[1] == "given" else "",
        )
        start = None


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page of this tree."""
    return list(read_blocks(page, (_ROOT / page).read_text(encoding="utf-8")))


def manifests_for(page: str, runner: str) -> list[dict[str, Any]]:
    """The objects of a page that the test in this file creates; the path is relative to the tree."""
    texts = [one.text for one in blocks_of(page) if one.runner == runner and one.language == "yaml"]
    return [manifest for text in texts for manifest in yaml.safe_load_all(text)]


def commands_for(page: str, runner: str) -> list[Command]:
    """The commands of a page that the test in this file runs; the path is relative to the tree."""
    return [command for one in blocks_of(page) if one.runner == runner for command in one.commands]
