"""The mark of a migration on its claim and volumes.

A request whose answer got lost can take effect minutes later, when the command has gone the other way. Each
request contains the version of its object, so it fails if the object was written since. The marks are these
writes: before a direction relies on an object, it replaces the mark of the other direction there.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

MARK: Final = "efs.csi.aws.com/migration"


class Mark(StrEnum):
    """What the migration does with an object.

    While a volume is leaving or arriving, its reclaim policy is that of the migration. Without a mark, or
    when its claim has arrived, its reclaim policy is the choice of an administrator.
    """

    LEAVING = "leaving"
    ARRIVING = "arriving"
    ARRIVED = "arrived"


KEPT: Final = frozenset({Mark.LEAVING, Mark.ARRIVING})


def read_mark(body: Mapping[str, Any]) -> Mark | None:
    """The mark of an object; an unknown one counts as none."""
    text = (body["metadata"].get("annotations") or {}).get(MARK)
    return Mark(text) if text in set(Mark) else None


def marked(body: Mapping[str, Any], mark: Mark) -> Mapping[str, Any]:
    """The object with the mark."""
    metadata = body["metadata"]
    annotations = {**(metadata.get("annotations") or {}), MARK: str(mark)}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def marking(mark: Mark | None) -> Mapping[str, Any]:
    """The metadata of a merge patch that sets the mark, or removes it."""
    return {"annotations": {MARK: mark and str(mark)}}
