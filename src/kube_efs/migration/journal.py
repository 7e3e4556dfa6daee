"""The journal on a CSI volume, with which its migration can continue, forward or back, from any state.

It is an annotation in JSON, and lives as long as the volume: nothing else has to be kept, and nothing can get
lost apart from it.
"""

import json
from dataclasses import dataclass
from typing import Final

from kube_efs.migration.errors import MigrationRefused
from kube_efs.migration.manifests import Manifest
from kube_efs.model.claims import ReclaimPolicy

ANNOTATION: Final = "efs.csi.aws.com/migrated-from"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The claim without its volume and with its first class, the NFS volume, and the CSI volume's policy."""

    claim: Manifest
    volume: Manifest
    policy: ReclaimPolicy

    @property
    def nfs_policy(self) -> ReclaimPolicy:
        """The original reclaim policy of the NFS volume."""
        return ReclaimPolicy(self.volume["spec"].get("persistentVolumeReclaimPolicy", ReclaimPolicy.RETAIN))


def write_journal(journal: Journal) -> str:
    """The text of the annotation."""
    content = {
        "version": _VERSION,
        "policy": str(journal.policy),
        "claim": journal.claim,
        "volume": journal.volume,
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def read_journal(text: str, *, volume: str) -> Journal:
    """The journal in an annotation of that volume; raises MigrationRefused if it is not valid."""
    try:
        content = json.loads(text)
        journal = Journal(
            claim=content["claim"], volume=content["volume"], policy=ReclaimPolicy(content["policy"])
        )
        known = content["version"] == _VERSION
        _ = (journal.nfs_policy, journal.claim["metadata"]["name"], journal.volume["metadata"]["name"])
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise _unreadable(volume, "was not written by this command") from error
    if not known:
        raise _unreadable(volume, "was written by a newer version")
    return journal


def _unreadable(volume: str, problem: str) -> MigrationRefused:
    remedy = "use the version that wrote it, or remove the annotation to keep the volume unchanged"
    return MigrationRefused(
        problem, field=f"volume {volume} metadata.annotations", value=ANNOTATION, remedy=remedy
    )
