"""Writes the tables of docs/settings.md from kube_efs.settings; with --check only compares, and fails."""

import sys
from collections.abc import Iterator
from pathlib import Path

from kube_efs.settings.base import AwsSettings, CommonSettings, Environment
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.fields import variables
from kube_efs.settings.node import NodeSettings
from kube_efs.settings.operator import OperatorSettings
from kube_efs.settings.tunnel import TunnelSettings

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
BEGIN, END = "<!-- begin: scripts/settings_table.py -->", "<!-- end -->"


def _rows(kind: type[Environment], inherited: set[str]) -> Iterator[str]:
    for field, one in variables(kind).items():
        if field not in inherited:
            yield f"| `{one.name}` | {one.shown} | {one.accepts} | {one.meaning} |"


def _table(title: str, kind: type[Environment], *bases: type[Environment]) -> str:
    inherited = {name for base in bases for name in variables(base)}
    head = "| variable | default | accepts | meaning |\n|---|---|---|---|\n"
    return f"## {title}\n\n{head}" + "\n".join(_rows(kind, inherited)) + "\n"


def render() -> str:
    """The generated part of the page."""
    common = (CommonSettings, AwsSettings)
    return "\n".join(
        [
            _table("All processes", CommonSettings),
            _table("All processes: where they are in AWS", AwsSettings),
            _table("`kube-efs controller`", ControllerSettings, *common),
            _table("`kube-efs tunnel`", TunnelSettings, *common),
            _table("`kube-efs node`", NodeSettings, *common),
            _table("`kube-efs operator`", OperatorSettings, CommonSettings),
        ]
    )


def main() -> int:
    """Updates the page, or compares it; the exit status."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n\n{render()}\n{END}{after}"
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if page != wanted:
        sys.stderr.write("docs/settings.md does not match kube_efs.settings; run scripts/settings_table.py\n")
    return int(page != wanted)


if __name__ == "__main__":
    sys.exit(main())
