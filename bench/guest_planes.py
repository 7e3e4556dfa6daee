"""The data planes in a guest, whose kernel has TLS.

Everything in a guest shares one processor. The kernel of User Mode Linux computes AES in C, while OpenSSL
uses the instructions of the processor for it, as the kernel of a node does. To measure both ciphers alone and
to take the difference off was tried and rejected: the kernel's cipher alone needed more than the whole relay.
"""

import json
import resource
from typing import Final

from bench.plane_samples import Sizes, sample
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.work import run

SAMPLES: Final = "samples.json"

_SIZES: Final = Sizes(rounds=3, mebibytes=64, requests=300)
# A relay takes as many tunnels as it has descriptors for.
_FILES: Final = 65536
_MODULES: Final = ("tls", "gcm", "ctr", "ghash-generic")


async def data_planes(machine: Machine) -> None:
    """Measure, and leave the samples in a file of the host."""
    await run("modprobe", "-d", "/run/modules", "-a", *_MODULES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    samples = await sample(machine.folder, _SIZES)
    (machine.logs / SAMPLES).write_text(json.dumps(samples))
