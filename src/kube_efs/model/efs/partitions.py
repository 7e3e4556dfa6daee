"""Partitions of AWS: groups of regions with their own DNS suffix, and some with their own authorities."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kube_efs.model.efs.ids import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The domains of EFS and S3 Files, and whether other authorities than Amazon's sign certificates."""

    dns_suffix: str
    s3_files_dns_suffix: str
    has_own_authorities: bool = False


def _isolated(domain: str) -> Partition:
    """A partition with authorities of its own, and one domain for all names."""
    return Partition(dns_suffix=domain, s3_files_dns_suffix=domain, has_own_authorities=True)


# By the beginnings of the names of regions, so that new regions of a partition are known, too. The values are
# those of efs-utils (dns_name_suffix and stunnel_cafile of each region's section in efs-utils.conf and
# s3files-utils.conf).
_PARTITIONS: Mapping[str, Partition] = MappingProxyType(
    {
        "cn-": Partition(dns_suffix="amazonaws.com.cn", s3_files_dns_suffix="on.amazonwebservices.com.cn"),
        "eusc-": _isolated("amazonaws.eu"),
        "eu-isoe-": _isolated("cloud.adc-e.uk"),
        "us-iso-": _isolated("c2s.ic.gov"),
        "us-isob-": _isolated("sc2s.sgov.gov"),
        "us-isof-": _isolated("csp.hci.ic.gov"),
    }
)
_PUBLIC = Partition(dns_suffix="amazonaws.com", s3_files_dns_suffix="on.aws")  # us-gov-* too


def partition_of(region: Region) -> Partition:
    """The partition of the region."""
    return next((one for prefix, one in _PARTITIONS.items() if region.startswith(prefix)), _PUBLIC)
