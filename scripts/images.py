"""The content of images of this machine."""

import os
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SECONDS: Final = 120
_PROJECT: Final = Path(__file__).parents[1] / "pyproject.toml"


def own_image() -> str:
    """The name of the image of ``make image``; the environment variable IMAGE overrides it, as there."""
    version = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    return os.environ.get("IMAGE") or f"localhost/kube-efs:{version}"


@contextmanager
def mounted_image(image: str) -> Iterator[Path]:
    """The root directory of the image, which must not be changed. Needs root; raises CalledProcessError."""
    container = _buildah("from", "--pull-never", image)
    try:
        yield Path(_buildah("mount", container))
    finally:
        _buildah("rm", container)


def _buildah(*arguments: str) -> str:
    """The output; errors go to the terminal."""
    done = subprocess.run(
        ("buildah", *arguments), check=True, stdout=subprocess.PIPE, text=True, timeout=_SECONDS
    )
    return done.stdout.strip()
