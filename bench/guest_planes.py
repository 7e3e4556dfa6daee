"""The data planes in a guest, whose kernel has TLS.

Everything in a guest shares one processor. The kernel of User Mode Linux computes AES in C, while OpenSSL
uses the instructions of the processor for it. The kernel of a node uses them, too, and so does that of the
guest with the module of ``guest_cipher``.
"""

import json
import os
import resource
from typing import Final

from bench.plane_samples import Sizes, sample
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.work import run

SAMPLES: Final = "samples.json"
# The variable that names the module of ``guest_cipher``.
CIPHER: Final = "GUEST_CIPHER"

_SIZES: Final = Sizes(rounds=3, mebibytes=64, requests=300)
# A relay takes as many tunnels as it has descriptors for.
_FILES: Final = 65536


async def data_planes(machine: Machine) -> None:
    """Measure, and leave the samples in a file of the host."""
    await run("insmod", os.environ[CIPHER])
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    samples = await sample(machine.folder, _SIZES)
    (machine.logs / SAMPLES).write_text(json.dumps(samples))
