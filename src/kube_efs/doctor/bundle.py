"""Bundles: findings, objects and logs in one archive, without secrets, for support.

Nothing enters an archive but by ``Bundle``, which takes the secrets out.
"""

import io
import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any, Final

from kube_efs.doctor.redaction import redacted, redacted_text
from kube_efs.model.errors import InvalidSetting

_FOLDER: Final = "kube-efs-doctor"
_MODE: Final = 0o600


class Bundle:
    """Files by their path, without secrets."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}

    @property
    def files(self) -> dict[str, str]:
        """Path and text of each file, in order."""
        return dict(sorted(self._files.items()))

    def add_text(self, path: str, text: str) -> None:
        """Add a text; an empty one is omitted."""
        if text:
            self._files[path] = redacted_text(text)

    def add_object(self, path: str, found: Any) -> None:  # noqa: ANN401 - any JSON
        """Add JSON: an object of Kubernetes or a list of objects."""
        self._files[path] = json.dumps(redacted(found), indent=2, default=str) + "\n"


def write_bundle(path: Path, bundle: Bundle) -> None:
    """Write the archive, readable for its owner only; raises InvalidSetting when it cannot be written."""
    content = _archive(bundle)
    try:
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, _MODE)) as file:
            os.fchmod(file.fileno(), _MODE)  # it may have been there, for all to read
            file.write(content)
    except OSError as error:
        raise InvalidSetting(
            f"cannot be written ({error.strerror})",
            field="--bundle",
            value=str(path),
            remedy="name a file in a writable directory",
        ) from error


def _archive(bundle: Bundle) -> bytes:
    buffer = io.BytesIO()
    now = int(time.time())
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in bundle.files.items():
            content = text.encode()
            entry = tarfile.TarInfo(f"{_FOLDER}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), _MODE, now
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
