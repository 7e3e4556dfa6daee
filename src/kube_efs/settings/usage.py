"""The controller's settings for measuring volumes."""

from dataclasses import dataclass

from kube_efs.settings.base import Environment
from kube_efs.settings.fields import count, setting, whole, whole_seconds


@dataclass(frozen=True, kw_only=True)
class UsageSettings(Environment):
    """The usage of volumes; off by default, because a measurement reads the metadata of every file on EFS."""

    usage_interval_seconds: int = setting(
        "KUBE_EFS_USAGE_INTERVAL_SECONDS",
        0,
        "Seconds between two rounds that measure every volume; 0 disables them.",
        read=whole(0, 30 * 86400),
        accepts="0, or more up to 2592000 seconds, whole",
    )
    usage_entries_per_second: int = count(
        "KUBE_EFS_USAGE_ENTRIES_PER_SECOND",
        1000,
        "Maximum number of files measured in a second.",
        least=1,
        most=1_000_000,
    )
    usage_volume_seconds: int = whole_seconds(
        "KUBE_EFS_USAGE_VOLUME_SECONDS",
        120,
        "Maximum seconds to measure one volume. If that is not enough, the result is a lower bound.",
        most=86400,
    )
