"""Directories of certificate authorities, which stunnel needs less memory and time for than for a file.

stunnel keeps all authorities of a file for each of its services, and reads the file twice at each reload. Of
a directory, it keeps what a handshake needs. The names in the directory are those that openssl-rehash(1)
gives.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def hashed_directory(ca_file: Path) -> Path:
    """The directory beside a file of authorities that may have them under the names of their hashes."""
    return ca_file.with_name(f"{ca_file.name}.d")


def find_hashed_directories(ca_files: Iterable[Path]) -> frozenset[Path]:
    """The directories beside these files that have exactly the authorities of the file.

    An administrator who replaces the file of the image must not get the authorities of its directory.
    """
    return frozenset(hashed_directory(file) for file in ca_files if _has_same_authorities(file))


def _has_same_authorities(ca_file: Path) -> bool:
    try:
        in_directory = {
            certificate
            for file in hashed_directory(ca_file).iterdir()
            for certificate in _CERTIFICATE.findall(file.read_text(encoding="ascii"))
        }
        return in_directory == set(_CERTIFICATE.findall(ca_file.read_text(encoding="ascii")))
    except (OSError, UnicodeDecodeError):
        return False
