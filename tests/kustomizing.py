"""What ``kubectl apply -k`` reads."""

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

# The first minor version of kubectl 1 whose kustomize can read the overlays.
_FIRST: Final = 21
_SECONDS: Final = 120


def kustomized(folder: Path) -> list[Any]:
    """The objects of the directory; the test is skipped if kubectl is too old."""
    if (version := _minor_version()) < _FIRST:
        pytest.skip(f"kubectl 1.{version} has a kustomize that is too old; 1.{_FIRST} or newer is necessary")
    return list(yaml.safe_load_all(_kubectl("kustomize", str(folder))))


@cache
def _minor_version() -> int:
    version = json.loads(_kubectl("version", "--client", "-o", "json"))["clientVersion"]
    return int(re.sub(r"\D", "", version["minor"]))


def _kubectl(*arguments: str) -> str:
    return subprocess.run(
        ["kubectl", *arguments], capture_output=True, text=True, check=True, timeout=_SECONDS
    ).stdout
