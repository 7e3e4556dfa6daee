"""The controller's settings for metrics over TLS."""

from dataclasses import dataclass
from pathlib import Path

from kube_efs.settings.base import Environment
from kube_efs.settings.fields import count, matching, read_path, setting


@dataclass(frozen=True, kw_only=True)
class SecureMetricsSettings(Environment):
    """Metrics over TLS, for a Prometheus that requires it, such as that of OpenShift."""

    metrics_certificate_folder: Path | None = setting(
        "KUBE_EFS_METRICS_CERTIFICATE_FOLDER",
        None,
        "Directory with `tls.crt` and `tls.key` for `/metrics` over TLS;"
        " the files may appear later, and change.",
        read=read_path,
        accepts="a path",
        shown="none: no TLS",
    )
    metrics_port: int = count(
        "KUBE_EFS_METRICS_PORT",
        9815,
        "Port of `/metrics` over TLS; 0 selects a free one.",
        least=0,
        most=65535,
    )
    metrics_tls_version: str = setting(
        "KUBE_EFS_METRICS_TLS_VERSION",
        "1.2",
        "Oldest version of TLS for `/metrics`.",
        read=matching(r"1\.[23]", "is neither 1.2 nor 1.3"),
        accepts="`1.2` or `1.3`",
    )
    metrics_tls_ciphers: str = setting(
        "KUBE_EFS_METRICS_TLS_CIPHERS",
        "",
        "Ciphers of TLS 1.2 for `/metrics`.",
        read=matching(r"[A-Z0-9,-]*", "are not valid cipher names"),
        accepts="OpenSSL's names with commas between them",
        shown="those with forward secrecy and authenticated encryption",
    )
