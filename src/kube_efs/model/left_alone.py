"""Claims and volumes that kube-efs leaves alone although their administrator may expect otherwise.

The controller publishes an event about each, and the doctor gives the same reason.
"""

from collections.abc import Collection

from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.errors import LeftAlone
from kube_efs.model.volumes import Volume, VolumePhase


def check_claim(
    claim: Claim, storage_class: StorageClass, served: Collection[str], former: Collection[str]
) -> None:
    """Raise LeftAlone for a claim that is not served because the name of a provisioner has changed.

    ``served`` are the names of the provisioners, ``former`` are earlier names of this installation's.
    """
    provisioner, assigned = storage_class.provisioner, claim.storage_provisioner
    if provisioner in served and assigned not in {None, *served}:
        raise LeftAlone(
            f"is not {provisioner}, the provisioner of StorageClass {storage_class.name}",
            field="annotation volume.kubernetes.io/storage-provisioner",
            value=assigned,
            remedy="Kubernetes corrects it within a minute; otherwise delete the claim and create it again",
        )
    if provisioner in former and provisioner not in served:
        raise LeftAlone(
            f"is an earlier name of this provisioner, which is {_names(served)} now",
            field=f"StorageClass {storage_class.name} provisioner",
            value=provisioner,
            remedy="create the class and the claim again with the new name, or set STORAGE_PROVISIONER_NAME "
            "to the earlier one",
        )


def check_volume(volume: Volume, served: Collection[str], former: Collection[str]) -> None:
    """Raise LeftAlone for a volume that its claim has left and that is not removed; names as above."""
    if volume.provisioned_by in served:
        if volume.phase is VolumePhase.FAILED and not volume.deleting:
            raise LeftAlone(
                "is not removed automatically",
                field="status.phase",
                value=str(VolumePhase.FAILED),
                remedy="save its data if it is needed, then delete the volume; its directory is kept",
            )
        return
    is_leaving = volume.to_be_reclaimed or (volume.deleting and volume.phase is not VolumePhase.BOUND)
    if volume.provisioned_by in former and is_leaving:
        raise LeftAlone(
            f"is an earlier name of this provisioner, which is {_names(served)} now",
            field="annotation pv.kubernetes.io/provisioned-by",
            value=volume.provisioned_by,
            remedy="set the annotation to the new name, or STORAGE_PROVISIONER_NAME to the earlier one; "
            "the volume is then removed",
        )


def _names(served: Collection[str]) -> str:
    return " or ".join(sorted(served))
