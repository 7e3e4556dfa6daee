"""Certificate authorities for tunnels: those of AWS, as on a node, beside those of a test.

stunnel reads the file of the authorities for each of its services again at each reload. With a file of one
authority, a reload would cost less than on any node.
"""

from pathlib import Path
from typing import Final

_DIRECTORY: Final = Path("/usr/share/ca-certificates/mozilla")  # of Debian's package ca-certificates


def beside_those_of_aws(authority: Path, folder: Path) -> Path:
    """A new file in ``folder`` with as many authorities as the one of the image: four of AWS and this one."""
    file = folder / "authorities.pem"
    files = (*sorted(_DIRECTORY.glob("Amazon_Root_CA_?.crt")), authority)
    file.write_bytes(b"".join(one.read_bytes() for one in files))
    return file
