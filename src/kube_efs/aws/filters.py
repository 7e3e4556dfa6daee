"""Lists objects of EC2 by their IDs."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from kube_efs.aws.connection import AwsConnection, Service

_FILTER_VALUES: Final = 200  # The maximum of values in a filter of EC2.


async def list_by_ids(
    connection: AwsConnection, operation: str, key: str, *, name: str, ids: Collection[str]
) -> list[Mapping[str, Any]]:
    """The items under ``key`` that match one of these IDs in the filter ``name``; raises AwsError.

    Missing objects are omitted. With a parameter instead of a filter, one unknown ID would fail the whole
    call.
    """
    wanted, found = sorted(ids), list[Mapping[str, Any]]()
    for start in range(0, len(wanted), _FILTER_VALUES):
        values = wanted[start : start + _FILTER_VALUES]
        subject = ", ".join(values)
        found += await connection.list_all(
            Service.EC2, operation, key, subject=subject, Filters=[{"Name": name, "Values": values}]
        )
    return found
