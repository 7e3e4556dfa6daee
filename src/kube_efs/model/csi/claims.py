"""Claims as requests to the CSI driver, and its volumes as PersistentVolumes.

This is what csi-provisioner does between a claim and the driver (external-provisioner 6.3, its README).
Names, secrets and fields are the same, so that one can replace the other.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kube_efs.model.claims import Claim, ReclaimPolicy, StorageClass
from kube_efs.model.csi.access_points import VolumeRequest, volume_request
from kube_efs.model.csi.capabilities import AccessMode, VolumeCapability, check_capabilities
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.file_system_templates import ClientPolicy
from kube_efs.model.csi.mount_flags import MOUNT_OPTIONS, parse_mount_flags
from kube_efs.model.csi.mount_options import plan_mount
from kube_efs.model.csi.parameters import VolumeParameters, parse_parameters
from kube_efs.model.csi.root_directories import VolumeOrigin
from kube_efs.model.csi.sidecar_parameters import (
    FILE_SYSTEM_TYPE,
    SecretTemplate,
    parse_sidecar_parameters,
)
from kube_efs.model.csi.volume_attributes import VolumeAttributes
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import ClaimRefused, InvalidValue
from kube_efs.model.nfs_volumes import refuse_unservable
from kube_efs.model.volumes import DRIVER, ClaimReference, CsiSource, Volume

# The shortest part of a uid that is regarded as one.
_UID_PART = 8

_FILE_SYSTEM_TYPES = frozenset({"", *FileSystemKind})
_VARIABLE = re.compile(r"\$\{(pv\.name|pvc\.name|pvc\.namespace)\}")
_MODES = {
    "ReadWriteOnce": AccessMode.SINGLE_NODE_WRITER,
    "ReadOnlyMany": AccessMode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": AccessMode.MULTI_NODE_MULTI_WRITER,
    "ReadWriteOncePod": AccessMode.SINGLE_NODE_SINGLE_WRITER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiRequest:
    """The request of a claim to the driver.

    ``secret`` is the namespace and name of the Secret with the role, None for our own account.
    """

    claim: Claim
    volume: VolumeRequest
    reclaim_policy: ReclaimPolicy
    mount_options: tuple[str, ...]
    secret: tuple[str, str] | None
    warnings: tuple[str, ...]


def parse_claim(
    claim: Claim, storage_class: StorageClass, *, required_bytes: int, has_driver_tags: bool
) -> CsiRequest:
    """The request of the claim.

    Raises ClaimRefused if it cannot be served until the claim or its class changes.
    """
    refuse_unservable(claim)
    if claim.match_labels is not None:
        remedy = "leave it out, each claim gets a volume of its own"
        raise ClaimRefused("is not supported", field="spec.selector", remedy=remedy)
    modes = [_MODES.get(name, AccessMode.UNKNOWN) for name in claim.access_modes]
    try:
        sidecar = parse_sidecar_parameters(storage_class.parameters)
        parameters = parse_parameters(storage_class.parameters, has_driver_tags=has_driver_tags)
        check_new_volume(
            [
                VolumeCapability(
                    access_mode=mode,
                    file_system_type=sidecar.file_system_type,
                    mount_flags=storage_class.mount_options,
                )
                for mode in modes
            ],
            parameters,
        )
    except InvalidValue as error:
        field = f"StorageClass {storage_class.name} {error.field}"
        raise ClaimRefused(error.problem, field=field, value=error.value, remedy=error.remedy) from error
    name = volume_name(claim)
    origin = VolumeOrigin(
        claim_name=claim.name,
        claim_namespace=claim.namespace,
        volume_name=name,
        labels=claim.labels,
        annotations=claim.annotations,
    )
    try:
        volume = volume_request(name, parameters, origin, required_bytes)
    except InvalidValue as error:
        raise ClaimRefused(
            error.problem, field=error.field, value=error.value, remedy=error.remedy
        ) from error
    has_role = sidecar.provisioner_secret is not None
    warnings = [
        *volume_warnings(parameters, storage_class.mount_options, has_role=has_role),
        *map(str, sidecar.warnings),
    ]
    if claim.attributes_class:
        warnings.append(f"spec.volumeAttributesClassName: {claim.attributes_class!r} has no effect on EFS")
    return CsiRequest(
        claim=claim,
        volume=volume,
        reclaim_policy=storage_class.reclaim_policy,
        mount_options=storage_class.mount_options,
        secret=_secret(claim, sidecar.provisioner_secret),
        warnings=tuple(warnings),
    )


def check_new_volume(capabilities: Sequence[VolumeCapability], parameters: VolumeParameters) -> None:
    """Raises InvalidArgument unless a volume with these capabilities can be created and then mounted.

    The type of the file system must be empty, ``efs`` or ``s3files``. A node ignores it, as that of the AWS
    driver does, so volumes that exist with another type can be mounted.
    """
    provisioning = parameters.provisioning
    check_capabilities(capabilities, provisioning.kind)
    # A claim that reuses an access point may get the one that the options name.
    has_new_access_point = provisioning.makes_access_points and not parameters.reuses_access_point
    for capability in capabilities:
        if capability.file_system_type not in _FILE_SYSTEM_TYPES:
            raise InvalidArgument(
                "is not supported",
                field=FILE_SYSTEM_TYPE,
                value=capability.file_system_type,
                remedy="leave it out, or use efs or s3files",
            )
        named = parse_mount_flags(capability.mount_flags, provisioning.kind).access_point_id
        if named is not None and has_new_access_point:
            raise InvalidArgument(
                "is not the access point of the volume, which has its own",
                field=MOUNT_OPTIONS,
                value=f"accesspoint={named}",
                remedy="leave it out",
            )
        # The check of the node, so that no pod is the first to find out. A plain directory is mounted as if
        # it had an access point: no parameter of a class turns off the encryption of either.
        handle = VolumeHandle(
            kind=provisioning.kind,
            file_system_id=FileSystemId("fs-00000000"),
            access_point_id=named or AccessPointId("fsap-00000000"),
        )
        plan_mount(handle, VolumeAttributes(), capability, read_only=False)


def volume_warnings(
    parameters: VolumeParameters, mount_options: Sequence[str], *, has_role: bool
) -> tuple[str, ...]:
    """What has no effect in a class, and why pods cannot mount its volumes."""
    warnings = [str(warning) for warning in parameters.warnings]
    if has_role and parameters.provisioning.kind is not FileSystemKind.EFS:
        warnings.append("provisioner secret: a role has no effect on S3 Files, as in the AWS driver")
    if parameters.zone is not None and not has_role:
        problem = "has no effect without a provisioner secret, which is for another account"
        warnings.append(str(InvalidValue(problem, field="az", value=parameters.zone, remedy="leave it out")))
    policy = parameters.template.policy if parameters.template else None
    if policy is ClientPolicy.TLS_AND_IAM and not parse_mount_flags(mount_options).iam:
        warnings.append(
            f"mountOptions: iam is missing, so no pod can mount the volumes (fileSystemPolicy: {policy})"
        )
    return tuple(warnings)


def volume_name(claim: Claim) -> str:
    """``pvc-<uid of the claim>``, as csi-provisioner names it."""
    return f"pvc-{claim.uid}"


def is_volume_of(volume: str, claim: ClaimUid) -> bool:
    """Whether csi-provisioner or the engine gives that name to the volume of the claim.

    csi-provisioner has options for the prefix, and to shorten the uid.
    """
    last = volume.rpartition("-")[2]
    is_short = len(last) >= _UID_PART and claim.replace("-", "").startswith(last)
    return volume.endswith(claim) or is_short


def volume_for(request: CsiRequest, source: CsiSource, zone: str | None) -> Volume:
    """The volume with that handle, which serves the request."""
    claim, secret = request.claim, request.secret
    return Volume(
        name=volume_name(claim),
        reclaim_policy=request.reclaim_policy,
        storage_class=claim.storage_class or "",
        provisioned_by=DRIVER,
        claim=ClaimReference(
            namespace=claim.namespace,
            name=claim.name,
            uid=claim.uid,
            resource_version=claim.resource_version,
        ),
        csi=source,
        zone=zone,
        deletion_secret=secret,
        attributes_class=claim.attributes_class,
        mount_options=request.mount_options,
        access_modes=claim.access_modes,
        capacity=claim.requested_storage,
    )


def _secret(claim: Claim, template: SecretTemplate | None) -> tuple[str, str] | None:
    if template is None:
        return None
    values = {"pv.name": volume_name(claim), "pvc.name": claim.name, "pvc.namespace": claim.namespace}

    def filled(text: str) -> str:
        return _VARIABLE.sub(lambda found: values[found[1]], text)

    return filled(template.namespace), filled(template.name)
