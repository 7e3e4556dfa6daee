"""Partitions of AWS: groups of regions with their own DNS suffix, and some with their own authorities."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kube_efs.model.efs.ids import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The domain of the endpoints, and whether Amazon's public authorities do not sign their certificates."""

    dns_suffix: str
    has_own_authorities: bool = False


# By the beginnings of the names of regions, so that new regions of a partition are known, too. The values are
# those of efs-utils (efs-utils.conf: dns_name_suffix and stunnel_cafile of each region's section).
_PARTITIONS: Mapping[str, Partition] = MappingProxyType(
    {
        "cn-": Partition(dns_suffix="amazonaws.com.cn"),
        "eusc-": Partition(dns_suffix="amazonaws.eu", has_own_authorities=True),
        "eu-isoe-": Partition(dns_suffix="cloud.adc-e.uk", has_own_authorities=True),
        "us-iso-": Partition(dns_suffix="c2s.ic.gov", has_own_authorities=True),
        "us-isob-": Partition(dns_suffix="sc2s.sgov.gov", has_own_authorities=True),
        "us-isof-": Partition(dns_suffix="csp.hci.ic.gov", has_own_authorities=True),
    }
)
_PUBLIC = Partition(dns_suffix="amazonaws.com")  # us-gov-* too


def partition_of(region: Region) -> Partition:
    """The partition of the region."""
    return next((one for prefix, one in _PARTITIONS.items() if region.startswith(prefix)), _PUBLIC)
