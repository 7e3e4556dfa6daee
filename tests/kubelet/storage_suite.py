"""Kubernetes' own tests of storage drivers: how to run them, and the list of their results.

A test of the suite passes, is skipped by the suite, or cannot run here. The list has those that do not run
by their reason, which the suite gives for those that it skips.
"""

import asyncio
import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from tests.conformance.programs import PROGRAMS
from tests.kubelet import images
from tests.kubelet.node import Node

from fake_efs.process import ChildProcess

LIST = Path(__file__).with_suffix(".yaml")
DRIVER = Path(__file__).with_name("storage_driver.yaml")
STORAGE_CLASS = "storage-suite"
_PROGRAM = PROGRAMS / "storage-suite"
_LIST_COMMENT = """\
# The results of Kubernetes' tests of storage drivers. This command writes all but "cannot run" again:
#   .venv/bin/pytest --timeout=3000 tests/kubelet/test_storage_suite.py --snapshot-update
"""
# Half of a test is waiting. With more of them, the one processor of the node is too slow for their probes.
_PROCESSES = 4
_SUITE = "External Storage"
_MINUTES = 40
_CLEANUP_SECONDS = 30
# The registries of the suite's images. The node has the images, so it asks none of them.
_REGISTRIES = (
    *("buildImage", "cloudProviderGcp", "dockerLibrary", "gcEtcd", "gc", "invalid", "private", "promoterE2e"),
    "sigStorage",
)
_REGISTRY = "localhost"
_SHELLS = ("busybox", "nginx", "glibc-dns-testing")
_AGNHOST = "agnhost"
_OUTPUT_CHARACTERS = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a test.

    ``message`` is the reason why it was skipped or failed, and ``output`` the end of its output.
    """

    name: str
    state: str
    message: str
    output: str

    @classmethod
    def from_report(cls, spec: Mapping[str, Any]) -> Self:
        """A result from an entry of ginkgo's report in JSON."""
        # The first is the same for all: the driver.
        names = [*spec["ContainerHierarchyTexts"][1:], spec["LeafNodeText"]]
        return cls(
            name=" ".join(names),
            state=spec["State"],
            message=spec.get("Failure", {}).get("Message", ""),
            output=spec.get("CapturedGinkgoWriterOutput", "")[-_OUTPUT_CHARACTERS:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultList:
    """The names of all tests; ``skipped`` and ``cannot_run`` have the reason as key."""

    passes: tuple[str, ...]
    skipped: Mapping[str, tuple[str, ...]]
    cannot_run: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls) -> Self:
        """The list in the tree."""
        read = yaml.safe_load(LIST.read_text())
        skipped, cannot_run = (
            {reason: tuple(names) for reason, names in read[key].items()} for key in ("skipped", "cannot run")
        )
        return cls(passes=tuple(read["passes"]), skipped=skipped, cannot_run=cannot_run)

    @classmethod
    def from_results(cls, results: Iterable[Result], *, cannot_run: Mapping[str, tuple[str, ...]]) -> Self:
        """The list of these results; tests that failed are not in it."""
        skipped = defaultdict(list)
        for one in results:
            # Without a message it was not selected.
            if one.state == "skipped" and one.message:
                skipped[one.message].append(one.name)
        return cls(
            passes=tuple(sorted(one.name for one in results if one.state == "passed")),
            skipped={reason: tuple(sorted(names)) for reason, names in sorted(skipped.items())},
            cannot_run=cannot_run,
        )

    def write(self) -> None:
        """Make it the list in the tree."""
        content = {
            "passes": list(self.passes),
            "skipped": {reason: list(names) for reason, names in self.skipped.items()},
            "cannot run": {reason: list(names) for reason, names in self.cannot_run.items()},
        }
        LIST.write_text(_LIST_COMMENT + yaml.safe_dump(content, sort_keys=False, width=1000))


async def load_images(node: Node) -> None:
    """Put the images of the suite's pods on the node, under the names that the suite uses.

    In all of them the pods run a shell, or Kubernetes' program agnhost.
    """
    for archive in await asyncio.to_thread(_write_images, node.folder):
        await node.run("ctr", "--namespace", "k8s.io", "images", "import", f"/run/node/{archive.name}")


def _write_images(folder: Path) -> list[Path]:
    """Write their archives."""
    names = subprocess.check_output([_PROGRAM, "--list-images"], env=_environment(folder), text=True).split()

    def versions(image: str) -> list[str]:
        return [one for one in names if one.startswith(f"{_REGISTRY}/{image}:")]

    agnhost = PROGRAMS / _AGNHOST
    archives = [folder / f"{name}.tar" for name in ("shell", _AGNHOST)]
    images.write_busybox(
        archives[0], names=[name for one in _SHELLS for name in versions(one)], command=["/bin/sh"]
    )
    images.write_busybox(
        archives[1],
        names=versions(_AGNHOST),
        entrypoint=[f"/{_AGNHOST}"],
        command=["pause"],
        files={f"/{_AGNHOST}": agnhost, **{str(one): one for one in _libraries(agnhost)}},
    )
    return archives


def _libraries(program: Path) -> list[Path]:
    """The shared libraries of a program, and the loader; none if it is static."""
    done = subprocess.run(["ldd", program], check=False, capture_output=True, text=True)
    return [Path(one) for one in re.findall(r"(/\S+) \(0x", done.stdout)]


async def run(kubeconfig: Path, folder: Path, *, excluded: Sequence[str]) -> list[Result]:
    """Run all tests but those excluded; returns all results. ``folder`` gets the report and the log."""
    # ginkgo starts what has such a name.
    program = folder / "storage.test"
    program.symlink_to(_PROGRAM)
    options = {
        "procs": _PROCESSES,
        "timeout": f"{_MINUTES}m",
        "output-dir": folder,
        "json-report": "report.json",
        "no-color": "true",
    }
    suite_options = {"kubeconfig": kubeconfig, "storage.testdriver": DRIVER, "report-dir": folder}
    ginkgo = await ChildProcess.start(
        str(PROGRAMS / "ginkgo"),
        *(f"--{name}={value}" for name, value in options.items()),
        f"--focus={re.escape(_SUITE)}",
        *(f"--skip={re.escape(name)}" for name in excluded),
        str(program),
        "--",
        *(f"--{name}={value}" for name, value in suite_options.items()),
        log_file=folder / "log",
        environment=_environment(folder),
    )
    try:
        await ginkgo.wait()
    finally:
        await ginkgo.stop(timeout_seconds=_CLEANUP_SECONDS)
    (suite,) = json.loads((folder / "report.json").read_bytes())
    return [
        Result.from_report(one)
        for one in suite["SpecReports"]
        if one["LeafNodeType"] == "It" and one["ContainerHierarchyTexts"][0].startswith(_SUITE)
    ]


def _environment(folder: Path) -> dict[str, str]:
    """The environment of the suite; ``folder`` gets the mapping of registries."""
    registries = folder / "registries.yaml"
    registries.write_text(yaml.safe_dump({f"{name}Registry": _REGISTRY for name in _REGISTRIES}))
    return {
        **os.environ,
        "KUBE_TEST_REPO_LIST": str(registries),
        # Nodes have no SSH, whatever keys the user of this machine has.
        "KUBE_SSH_KEY_PATH": "/dev/null",
        # Rarely collect so small heaps.
        "GOGC": "400",
    }
