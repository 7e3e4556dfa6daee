"""``kube-efs demo`` as a person or a program runs it."""

import json
import subprocess
import sys
import time

_CLAIMS = {"efs-example": "Bound", "efs-kept": "Bound", "efs-chosen": "Bound", "efs-invalid": "Pending"}
_CHECKS = [
    "objects applied",
    "valid claims bound",
    "invalid claim refused with a reason",
    "tunnels up",
    "file written and read back through the tunnel",
    "TLS negotiated, peer verified",
    "peer of another name refused",
    "claims deleted",
    "Delete removed the data",
    "Retain kept the data",
]


def test_every_check_of_the_demo_holds_in_under_40_seconds() -> None:
    started = time.monotonic()
    answer = subprocess.run(
        [sys.executable, "-m", "kube_efs", "demo", "--output", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert time.monotonic() - started < 40
    document = json.loads(answer.stdout)
    assert [check for check in document["checks"] if not check["ok"]] == []
    assert [check["name"] for check in document["checks"]] == _CHECKS
    assert all(check["detail"] for check in document["checks"])
    assert document["ok"] is True
    assert 0 < document["seconds"] < 40
    assert answer.returncode == 0

    claims = {claim["name"]: claim for claim in document["claims"]}
    assert {name: claim["phase"] for name, claim in claims.items()} == _CLAIMS
    assert claims["efs-example"]["volume"].startswith("efs-stunnel-fs-")
    assert claims["efs-invalid"]["volume"] == ""
    assert "volume_name: 'Not-A-Name'" in claims["efs-invalid"]["reason"]
