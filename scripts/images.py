"""The content of images of this machine."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SECONDS: Final = 120


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
