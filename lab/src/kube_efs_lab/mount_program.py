"""The program ``mount`` of an embedded node whose kernel has no NFS client.

It asks the embedded cluster, on a socket, where the export leads through this tunnel, and then binds
that directory: ``python -m kube_efs_lab.mount_program SOCKET MOUNT -t nfs4 -o OPTIONS SOURCE TARGET``, where
MOUNT is the machine's own program. Only what Python brings is imported: it is started for each mount.
"""

import argparse
import json
import os
import socket
import sys
from typing import NoReturn

_SECONDS = 30.0
_FAILED = 32  # of mount(8)


def main() -> NoReturn:
    """Become the mount that binds the directory, or fail as mount.nfs would."""
    parser = argparse.ArgumentParser(prog="mount")
    parser.add_argument("socket")
    parser.add_argument("mount")
    parser.add_argument("-t", dest="kind", choices=["nfs4"], required=True)
    parser.add_argument("-o", dest="options", required=True)
    parser.add_argument("source")
    parser.add_argument("target")
    given = parser.parse_args()
    question = {"source": given.source, "options": given.options, "target": given.target}
    try:
        answer = _ask(given.socket, question)
    except OSError as error:
        _fail(f"the embedded cluster does not answer: {error}")
    if "error" in answer:
        _fail(answer["error"])
    access = "ro" if "ro" in given.options.split(",") else "rw"
    command = (given.mount, "--bind", "-o", access, answer["folder"], given.target)
    os.execv(given.mount, command)  # noqa: S606 - what this is for


def _ask(path: str, question: dict[str, str]) -> dict[str, str]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(path)
        connection.sendall(json.dumps(question).encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer: dict[str, str] = json.loads(lines.readline() or b'{"error": "it has gone"}')
    return answer


def _fail(problem: str) -> NoReturn:
    sys.stderr.write(f"{problem}\n")
    sys.exit(_FAILED)


if __name__ == "__main__":
    main()
