"""Certificate authorities for tunnels: those of AWS, as on a node, beside those of a test.

stunnel reads the authorities for each of its services again at each reload. With one authority, a reload
would cost less than on any node.
"""

import subprocess
from pathlib import Path
from typing import Final

_DIRECTORY: Final = Path("/usr/share/ca-certificates/mozilla")  # of Debian's package ca-certificates


def beside_those_of_aws(authority: Path, folder: Path) -> Path:
    """A new file in ``folder`` with as many authorities as the one of the image: four of AWS and this one.

    As in the image, there is a directory with the same authorities beside it.
    """
    file = folder / "authorities.pem"
    directory = folder / "authorities.pem.d"
    directory.mkdir()
    for one in (*sorted(_DIRECTORY.glob("Amazon_Root_CA_?.crt")), authority):
        ask = ("openssl", "x509", "-noout", "-subject_hash", "-in", str(one))
        hashed = subprocess.run(ask, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
        (directory / f"{hashed}.0").write_bytes(one.read_bytes())
    file.write_bytes(b"".join(one.read_bytes() for one in sorted(directory.iterdir())))
    return file
