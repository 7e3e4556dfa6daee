"""Writes deploy/helm, deploy/kustomize and deploy/openshift; with --check only compares, and fails."""

import sys
from collections.abc import Iterator
from pathlib import Path

from kube_efs.operator.forms import chart, kustomizations, openshift_templates

DEPLOY = Path(__file__).parents[1] / "deploy"
FORMS = {
    chart.FOLDER: chart.chart_files,
    kustomizations.FOLDER: kustomizations.kustomize_files,
    openshift_templates.FOLDER: openshift_templates.openshift_files,
}


def differing(deploy: Path = DEPLOY) -> Iterator[str]:
    """The files that are not as they would be written, that are missing, or that nothing writes."""
    for folder, files in FORMS.items():
        wanted = files()
        there = {
            str(path.relative_to(deploy / folder)) for path in (deploy / folder).rglob("*") if path.is_file()
        }
        for name in sorted(there | wanted.keys()):
            path = deploy / folder / name
            if name not in there or path.read_text(encoding="utf-8") != wanted.get(name):
                yield f"{folder}/{name}"


def write(deploy: Path = DEPLOY) -> None:
    """Write them all, and remove what is no part of them."""
    for folder, files in FORMS.items():
        wanted = files()
        for path in (deploy / folder).rglob("*"):
            if path.is_file() and str(path.relative_to(deploy / folder)) not in wanted:
                path.unlink()
        for name, text in wanted.items():
            path = deploy / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def main() -> int:
    """Does so; the exit status."""
    if "--check" not in sys.argv[1:]:
        write()
        return 0
    found = list(differing())
    if found:
        sys.stderr.write(f"run make forms; it would change {', '.join(found)}\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
