"""The modules that the forked processes of kube-efs and moto need."""

import gc

from kube_efs.telemetry.loading import load_logging

load_logging()

import moto.ec2.urls  # noqa: E402
import moto.efs.urls  # noqa: E402
import moto.server  # noqa: E402, F401

import kube_efs.cli  # noqa: E402
import kube_efs.controllers.process  # noqa: E402
import kube_efs.csi.run_node  # noqa: E402
import kube_efs.operator.run  # noqa: E402
import kube_efs.tunnels.run  # noqa: E402, F401

gc.collect()
gc.freeze()
