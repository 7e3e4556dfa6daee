"""``kube-efs demo`` as a person or a program runs it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_CLAIMS = {
    "efs": "Bound",
    "efs-claim-1": "Bound",
    "efs-example": "Bound",
    "efs-kept": "Bound",
    "efs-chosen": "Bound",
    "efs-invalid": "Pending",
}
_CHECKS = [
    "objects applied",
    "valid claims bound",
    "invalid claim refused with a reason",
    "tunnels up",
    "file written and read back through the tunnel",
    "directory of a group of its own",
    "only its group writes into it",
    "pod writes into its access point through a CSI mount",
    "another pod reads it",
    "a SharedVolume shows it in another namespace",
    "the mounts' tunnel leads to the same file",
    "TLS negotiated, peer verified",
    "peer of another name refused",
    "SharedVolume deleted, claim and volume gone",
    "pods deleted, volumes unmounted",
    "claims deleted",
    "Delete removed the data",
    "Delete removed the access point",
    "Retain kept the data",
]


def _demo(**variables: str) -> tuple[int, dict[str, Any]]:
    answer = subprocess.run(
        [sys.executable, "-m", "kube_efs", "demo", "--output", "json"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert answer.stdout, answer.stderr
    return answer.returncode, json.loads(answer.stdout)


def test_every_check_of_the_demo_succeeds() -> None:
    code, document = _demo()
    assert [check for check in document["checks"] if not check["ok"]] == []
    assert [check["name"] for check in document["checks"]] == _CHECKS
    assert all(check["detail"] for check in document["checks"])
    assert document["ok"] is True
    assert document["seconds"] > 0
    assert code == 0

    claims = {claim["name"]: claim for claim in document["claims"]}
    assert {name: claim["phase"] for name, claim in claims.items()} == _CLAIMS
    assert claims["efs-example"]["volume"].startswith("efs-stunnel-fs-")
    assert claims["efs"]["volume"].startswith("pvc-")
    assert claims["efs-invalid"]["volume"] == ""
    assert "volume_name: 'Not-A-Name'" in claims["efs-invalid"]["reason"]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name, as paths of sockets need it."""
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        yield Path(name)


def test_a_check_that_fails_is_reported_and_the_others_still_run(place: Path) -> None:
    for program in ("ganesha.nfsd", "mount", "setpriv", "stunnel", "umount"):
        if found := shutil.which(program):
            (place / program).symlink_to(found)
    # Without libnfs's tools there is nobody to read and write through the tunnel.
    code, document = _demo(PATH=str(place), TMPDIR=str(place))
    failed = {check["name"]: check["detail"] for check in document["checks"] if not check["ok"]}
    assert code == 1
    assert document["ok"] is False
    assert "install libnfs-utils" in failed["file written and read back through the tunnel"]
    assert [check["name"] for check in document["checks"]] == _CHECKS
    assert {"valid claims bound", "TLS negotiated, peer verified"}.isdisjoint(failed)
    assert any(path.name.startswith("kube-efs-demo-") for path in place.iterdir()), "the logs are kept"
