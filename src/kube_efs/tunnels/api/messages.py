"""Converts the messages on the agent's socket to values, and back, errors included.

An error must arrive with its class, because the driver answers the kubelet with the code of the class. So
the whole error is sent: the name of its class, and its parts. With gRPC, it is in the metadata of the
answer. During an upgrade, the two sides are of different versions. The name is therefore that of the
nearest class in ``model.errors``, and a name that this side does not know is read as ``TunnelError``. The
parts are cut and freed of secrets before they are sent, because they end in events.
"""

from typing import Final

from kube_efs.aws.credential_sources import IamOptions, ServiceAccountIdentity
from kube_efs.model import errors
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId, Region, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import parse_address
from kube_efs.model.errors import InvalidValue, KubeEfsError, TunnelError, shown
from kube_efs.model.secrets import shortened
from kube_efs.tunnels.protocol import tunnels_pb2 as pb
from kube_efs.tunnels.reservations import TunnelSpec

# Of gRPC: the name of the service, and of a Failure among the metadata of a call that failed.
SERVICE: Final = "kube_efs.tunnels.v1.Tunnels"
FAILURE_KEY: Final = "kube-efs-failure-bin"


def parse_spec(message: pb.Spec) -> TunnelSpec:
    """The spec, which checks its parts; raises InvalidValue, also for a part of a later version.

    Without that part, it would be the spec of another tunnel.
    """
    known = pb.Spec()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() != message.ByteSize():
        raise InvalidValue(
            "has a part that this version does not know",
            field="tunnel",
            value=message.file_system_id,
            remedy="update the tunnel agent",
        )
    return TunnelSpec(
        file_system_id=FileSystemId(message.file_system_id),
        access_point_id=AccessPointId(message.access_point_id) if message.access_point_id else None,
        iam=_parse_identity(message),
        region=Region(message.region) if message.region else None,
        # In its canonical form, because equal specs share a tunnel.
        address=parse_address(message.address) if message.address else None,
        zone=ZoneName(message.zone) if message.zone else None,
        cross_account=message.cross_account,
        checks_revocation=message.checks_revocation,
        ca_file=message.ca_file or None,
        kind=_parse_kind(message.kind),
    )


def render_spec(spec: TunnelSpec) -> pb.Spec:
    """The message."""
    return pb.Spec(
        file_system_id=spec.file_system_id,
        access_point_id=spec.access_point_id or "",
        iam=_render_iam(spec.iam) if isinstance(spec.iam, IamOptions) else None,
        region=spec.region or "",
        address=spec.address or "",
        zone=spec.zone or "",
        cross_account=spec.cross_account,
        checks_revocation=spec.checks_revocation,
        ca_file=spec.ca_file or "",
        kind=spec.kind,
        service_account=(
            pb.ServiceAccount(
                namespace=spec.iam.namespace, name=spec.iam.name, role_arn=spec.iam.role_arn or ""
            )
            if isinstance(spec.iam, ServiceAccountIdentity)
            else None
        ),
    )


def render_failure(error: KubeEfsError) -> bytes:
    """The error for the other side; its parts are cut and contain no secrets."""
    value = error.value if isinstance(error.value, str) else shown(error.value)
    failure = pb.Failure(
        # The nearest class of the tree of errors, because the other side may not know a class of another
        # module.
        kind=next(kind.__name__ for kind in type(error).__mro__ if vars(errors).get(kind.__name__) is kind),
        problem=shortened(error.problem, 1000),
        field=shortened(error.field, 200),
        value=shortened(value, 200),
        remedy=shortened(error.remedy, 1000),
    )
    return failure.SerializeToString()


def parse_failure(encoded: bytes) -> KubeEfsError:
    """The error of the other side; a TunnelError for a class that this version does not know."""
    failure = pb.Failure.FromString(encoded)
    found = vars(errors).get(failure.kind)
    kind = found if isinstance(found, type) and issubclass(found, KubeEfsError) else TunnelError
    return kind(failure.problem, field=failure.field, value=failure.value, remedy=failure.remedy)


def _parse_kind(text: str) -> FileSystemKind:
    try:
        return FileSystemKind(text or FileSystemKind.EFS)
    except ValueError:
        raise InvalidValue(
            "is not known to this tunnel agent", field="kind", value=text, remedy="update the tunnel agent"
        ) from None


def _parse_identity(message: pb.Spec) -> IamOptions | ServiceAccountIdentity | None:
    if message.HasField("service_account"):
        account = message.service_account
        return ServiceAccountIdentity(
            namespace=account.namespace, name=account.name, role_arn=account.role_arn or None
        )
    if not message.HasField("iam"):
        return None
    return IamOptions(
        profile=message.iam.profile or None,
        credentials_uri=message.iam.credentials_uri or None,
        role_arn=message.iam.role_arn or None,
        token_file=message.iam.token_file or None,
    )


def _render_iam(iam: IamOptions) -> pb.Iam:
    return pb.Iam(
        profile=iam.profile or "",
        credentials_uri=iam.credentials_uri or "",
        role_arn=iam.role_arn or "",
        token_file=iam.token_file or "",
    )
