"""Writes the tables of docs/settings.md from kube_efs.settings; with --check only compares, and fails."""

import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic_settings import BaseSettings

from kube_efs.settings import (
    AwsSettings,
    CommonSettings,
    ControllerSettings,
    NodeSettings,
    OperatorSettings,
    TunnelSettings,
)

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
BEGIN, END = "<!-- begin: scripts/settings_table.py -->", "<!-- end -->"


def _rows(kind: type[BaseSettings], inherited: set[str]) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        extra = field.json_schema_extra
        if name not in inherited and isinstance(extra, dict):
            cells = (f"`{field.validation_alias}`", extra["shown"], extra["accepts"], field.description)
            yield f"| {' | '.join(map(str, cells))} |"


def _table(title: str, kind: type[BaseSettings], *bases: type[BaseSettings]) -> str:
    inherited = {name for base in bases for name in base.model_fields}
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
