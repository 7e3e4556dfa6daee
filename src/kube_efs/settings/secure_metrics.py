"""What the controller is told about metrics over TLS."""

from pathlib import Path

from kube_efs.settings.base import Environment
from kube_efs.settings.fields import count, setting


class SecureMetricsSettings(Environment):
    """Metrics for a Prometheus that trusts nobody by the network, as OpenShift's."""

    metrics_certificate_folder: Path | None = setting(
        "KUBE_EFS_METRICS_CERTIFICATE_FOLDER",
        None,
        "Folder with `tls.crt` and `tls.key`, with which `/metrics` is also served over TLS;"
        " both may come later, and change.",
        accepts="a path",
        shown="none: no TLS",
    )
    metrics_port: int = count(
        "KUBE_EFS_METRICS_PORT",
        9815,
        "Port of `/metrics` over TLS; 0 takes a free one.",
        least=0,
        most=65535,
    )
