"""Draws the pictures of the pages from a running cluster: ``make pictures``.

It starts ``kube-efs up`` in an empty directory, creates claims and pods with kubectl as a user does, and
keeps what the commands print as SVG, and the status page as PNG. The architecture is drawn from the list
below. All pictures therefore show what the version at hand shows.
"""

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from rich.console import Console
from rich.text import Text

_ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = _ROOT / "docs/pictures"
_BIN: Final = Path(sys.executable).parent
_START_SECONDS: Final = 180.0
_COMMAND_SECONDS: Final = 300
# As many as the widest table has, so that no table becomes a list.
_COLUMNS: Final = 180
_PAGE: Final = "1280,1500"
_BROWSERS: Final = ("chromium-headless-shell", "chromium")

_MANIFEST: Final = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: {storage_class}
  resources: {{requests: {{storage: {size}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: app
      image: centos
      command: [/bin/sh, -c, "while true; do head -c 20000 /dev/zero >> /data/file; sleep 1; done"]
      volumeMounts: [{{name: data, mountPath: /data}}]
  volumes:
    - name: data
      persistentVolumeClaim: {{claimName: {name}}}
"""
_CLAIMS: Final = (("orders", "efs-sc-1", "1Gi"), ("photos", "efs-sc-1", "20Gi"), ("reports", "slow", "5Gi"))
# rich's own form, without the font that it would fetch from elsewhere.
_TERMINAL: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A part of the architecture, in units of a grid; ``lines`` are its name and what it does."""

    x: int
    y: int
    width: int
    lines: tuple[str, ...]
    is_ours: bool = True


# From the API server and AWS at the top to the data at the bottom, as docs/design.md describes it.
BOXES: Final = {
    "kubernetes": Box(x=0, y=0, width=5, lines=("Kubernetes API", "claims, classes, volumes"), is_ours=False),
    "aws": Box(x=7, y=0, width=5, lines=("AWS API", "file systems, access points"), is_ours=False),
    "controller": Box(x=2, y=2, width=8, lines=("kube-efs controller", "creates and deletes volumes")),
    "tunnel": Box(x=7, y=4, width=5, lines=("kube-efs tunnel", "on each node: manages stunnel")),
    "node": Box(x=0, y=4, width=5, lines=("kube-efs node", "on each node: mounts volumes")),
    "pod": Box(x=0, y=6, width=5, lines=("pod", "reads and writes with NFS"), is_ours=False),
    "stunnel": Box(x=7, y=6, width=5, lines=("stunnel", "TLS, a port for each tunnel"), is_ours=False),
    "efs": Box(x=7, y=8, width=5, lines=("Amazon EFS", "mount targets, port 2049"), is_ours=False),
}
ARROWS: Final = (
    ("kubernetes", "controller", "watch"),
    ("aws", "controller", "discovery"),
    ("controller", "tunnel", "ConfigMap"),
    ("node", "tunnel", "port of a tunnel"),
    ("node", "pod", "mount"),
    ("pod", "stunnel", "NFS"),
    ("tunnel", "stunnel", "configuration"),
    ("stunnel", "efs", "NFS in TLS"),
)
_UNIT, _HEIGHT, _MARGIN = 60, 56, 24
_STYLE: Final = """\
<style>
text { fill: #24292f }
.box { fill: #f6f8fa; stroke: #8c959f }
.ours { fill: #ddf4ff; stroke: #0969da }
line { stroke: #57606a; stroke-width: 2 }
marker path { fill: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .box { fill: #161b22 }
  .ours { fill: #0c2d6b; stroke: #58a6ff }
  line { stroke: #8b949e }
  marker path { fill: #8b949e }
}
</style>"""
_ARROW_HEAD: Final = """\
<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">
<path d="M0,0 L8,4 L0,8 z"/>
</marker>"""


def architecture() -> str:
    """The processes and what flows between them, as SVG for light and dark pages."""
    width = 12 * _UNIT + 2 * _MARGIN
    height = max(box.y for box in BOXES.values()) * _UNIT + _HEIGHT + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        "<title>The processes of kube-efs, and what flows between them</title>",
        _STYLE,
        _ARROW_HEAD,
        *(_arrow(*arrow) for arrow in ARROWS),
        *(_box(box) for box in BOXES.values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(box: Box) -> str:
    left, top, width = _MARGIN + box.x * _UNIT, _MARGIN + box.y * _UNIT, box.width * _UNIT
    name, does = map(escape, box.lines)
    kind = "ours" if box.is_ours else "box"
    middle = left + width // 2
    return (
        f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{_HEIGHT}" rx="8"/>'
        f'<text x="{middle}" y="{top + 23}" text-anchor="middle" font-weight="bold">{name}</text>'
        f'<text x="{middle}" y="{top + 43}" text-anchor="middle" font-size="13">{does}</text>'
    )


def _arrow(begin: str, end: str, text: str) -> str:
    one, other = BOXES[begin], BOXES[end]
    if one.y == other.y:
        x1, x2 = _MARGIN + (one.x + one.width) * _UNIT, _MARGIN + other.x * _UNIT
        y1 = y2 = _MARGIN + one.y * _UNIT + _HEIGHT // 2
        label = f'x="{(x1 + x2) // 2}" y="{y1 - 8}" text-anchor="middle"'
    else:
        narrow = min(one, other, key=lambda box: box.width)
        x1 = x2 = _MARGIN + narrow.x * _UNIT + narrow.width * _UNIT // 2
        y1, y2 = _MARGIN + one.y * _UNIT + _HEIGHT, _MARGIN + other.y * _UNIT
        label = f'x="{x1 + 10}" y="{(y1 + y2) // 2 + 5}"'
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" marker-end="url(#end)"/>'
        f'<text {label} font-size="12">{escape(text)}</text>'
    )


def terminal(title: str, output: str) -> str:
    """What a command has printed, as SVG."""
    shown = Text.from_ansi(output.rstrip("\n"))
    width = max(len(line.plain.rstrip()) for line in shown.split("\n"))
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text("\n").join(_right_stripped(line) for line in shown.split("\n")))
    text = console.export_svg(title=title, code_format=_TERMINAL, unique_id="terminal")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _right_stripped(line: Text) -> Text:
    line.rstrip()
    return line


@contextmanager
def _cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """The environment of a terminal beside ``kube-efs up``, while that runs; raises TimeoutError."""
    log = (folder / "up.log").open("wb")
    running = subprocess.Popen(
        [_BIN / "kube-efs", "up"], cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    variables, end = folder / ".kube-efs/env", time.monotonic() + _START_SECONDS
    try:
        while not variables.exists():
            if running.poll() is not None or time.monotonic() > end:
                raise TimeoutError(f"kube-efs up has not started: {(folder / 'up.log').read_text()[-2000:]}")
            time.sleep(0.2)
        lines = (line.removeprefix("export ") for line in variables.read_text().splitlines())
        pairs = (line.partition("=")[::2] for line in lines)
        given = {name: "".join(shlex.split(value)) for name, value in pairs}
        shown = {"COLUMNS": str(_COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
        yield {**os.environ, **given, **shown, "PATH": f"{_BIN}:{os.environ['PATH']}"}
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(timeout=_COMMAND_SECONDS)
        log.close()


def _run(command: Sequence[str], environment: Mapping[str, str], *, text: str | None = None) -> str:
    """The output of a command, whose exit status may be that of problems that it has found."""
    done = subprocess.run(
        command,
        env=dict(environment),
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_COMMAND_SECONDS,
    )
    return done.stdout


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "architecture.svg").write_text(architecture(), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="pictures-") as name, _cluster(Path(name)) as environment:
        manifests = "---".join(
            _MANIFEST.format(name=claim, storage_class=storage_class, size=size)
            for claim, storage_class, size in _CLAIMS
        )
        _run(["kubectl", "apply", "-f", "-"], environment, text=manifests)
        pods = [claim for claim, _, _ in _CLAIMS]
        _run(["kubectl", "wait", "pod", *pods, "--for=condition=Ready", "--timeout=120s"], environment)
        end = time.monotonic() + _START_SECONDS
        while "Tunnels of CSI mounts" not in _run(["kube-efs", "status"], environment):
            if time.monotonic() > end:
                raise TimeoutError("the status does not show the tunnels")
            time.sleep(1)
        for command in ("status", "top", "doctor cluster"):
            output = _run(["kube-efs", *command.split()], environment)
            picture = FOLDER / f"{command.split()[0]}.svg"
            picture.write_text(terminal(f"kube-efs {command}", output), encoding="utf-8")
        _photograph((Path(name) / "up.log").read_text())
        output = _run(["kube-efs", "demo"], environment)
        (FOLDER / "demo.svg").write_text(terminal("make demo", output), encoding="utf-8")
    for path in sorted(FOLDER.iterdir()):
        sys.stdout.write(f"{path.relative_to(_ROOT)}\n")


def _photograph(printed: str) -> None:
    """The status page, at the address that ``kube-efs up`` has printed."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        sys.stderr.write("the status page is left out: chromium is not installed\n")
        return
    address = next(
        line.split()[-1] for line in printed.splitlines() if line.strip().startswith("status page")
    )
    picture = FOLDER / "status-page.png"
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={_PAGE}")
    subprocess.run(
        [browser, *options, "--virtual-time-budget=5000", f"--screenshot={picture}", address],
        check=True,
        capture_output=True,
        timeout=_COMMAND_SECONDS,
    )


if __name__ == "__main__":
    main()
