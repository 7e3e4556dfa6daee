"""What the processes of kube-efs load when they start, for the one that they are forked from."""

from kube_efs.telemetry.loading import load_logging

load_logging()

import kube_efs.cli  # noqa: E402
import kube_efs.controllers.run  # noqa: E402
import kube_efs.csi.run_node  # noqa: E402
import kube_efs.operator.run  # noqa: E402
import kube_efs.tunnels.run  # noqa: E402, F401
