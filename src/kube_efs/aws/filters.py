"""Listings of EC2 by the ids of what is looked for."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from kube_efs.aws.connection import AwsConnection, Service

_FILTER_VALUES: Final = 200  # EC2 takes no more values in one filter


async def list_by_ids(
    connection: AwsConnection, operation: str, key: str, *, name: str, ids: Collection[str]
) -> list[Mapping[str, Any]]:
    """What an operation lists under ``key`` whose filter ``name`` has one of these ids; raises AwsError.

    What does not exist is left out, while one unknown id as a parameter makes the whole call fail.
    """
    wanted, found = sorted(ids), list[Mapping[str, Any]]()
    for start in range(0, len(wanted), _FILTER_VALUES):
        chosen = {"Name": name, "Values": wanted[start : start + _FILTER_VALUES]}
        found += await connection.list_all(Service.EC2, operation, key, Filters=[chosen])
    return found
