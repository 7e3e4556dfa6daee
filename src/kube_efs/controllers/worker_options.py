"""How worker pods are run, as the settings say."""

from kube_efs.provisioning.workers.pod_objects import LEADER, WorkerOptions
from kube_efs.settings import ControllerSettings


def worker_options(settings: ControllerSettings, *, pool: str = LEADER) -> WorkerOptions:
    """The options of both who make directories: the leader, and the CSI socket of a replica."""
    return WorkerOptions(
        namespace=settings.namespace,
        image=settings.worker_image,
        service_account=settings.worker_service_account,
        timeout_seconds=round(settings.worker_timeout_seconds),
        batch_max=settings.worker_batch,
        pool=pool,
    )
