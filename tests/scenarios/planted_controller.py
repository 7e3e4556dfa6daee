"""``kube-efs controller`` with a planted defect, and with a file system that counts as unfinished at once.

Without a defect of ours, no duty fails repeatedly; and a file system is unfinished only after ten minutes.
"""

import runpy

from kube_efs.controllers import unfinished_file_systems
from kube_efs.controllers.unfinished_file_systems import UnfinishedFileSystems
from kube_efs.controllers.usage import UsageRounds


async def _fail(_: UsageRounds) -> None:
    raise ArithmeticError("planted")


if __name__ == "__main__":
    UsageRounds.run = _fail  # type: ignore[method-assign, assignment]
    unfinished_file_systems._AGE_SECONDS = 0.0  # type: ignore[misc]
    assert UnfinishedFileSystems.__init__.__kwdefaults__
    UnfinishedFileSystems.__init__.__kwdefaults__["interval_seconds"] = 1.0
    runpy.run_module("kube_efs", run_name="__main__", alter_sys=True)
