"""The parameters of a class that csi-provisioner interprets itself: ``csi.storage.k8s.io/…`` and ``fstype``.

csi-provisioner (6.3) removes them and calls the driver with the others. A controller that serves claims
without csi-provisioner applies the same rules here, so a class has the same effect in both modes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.errors import InvalidValue

SIDECAR_PREFIX = "csi.storage.k8s.io/"
# csi-provisioner adds these to the parameters of a call (--extra-create-metadata).
CLAIM_NAME = f"{SIDECAR_PREFIX}pvc/name"
CLAIM_NAMESPACE = f"{SIDECAR_PREFIX}pvc/namespace"

FILE_SYSTEM_TYPE = f"{SIDECAR_PREFIX}fstype"
_OLD_FILE_SYSTEM_TYPE = "fstype"  # in any case
# The first complete pair is used.
_PROVISIONER_SECRETS = ("provisioner-secret", "secret")
# For calls that do not exist here, or in which the driver reads no Secret.
_UNUSED_SECRETS = (
    *("controller-publish-secret", "controller-expand-secret", "controller-modify-secret"),
    *("node-stage-secret", "node-publish-secret", "node-expand-secret"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretTemplate:
    """Namespace and name of a Secret, which may contain variables such as ``${pvc.namespace}``."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarParameters:
    """The values; ``file_system_type`` is empty if it is not set. Each of ``warnings`` causes a warning."""

    file_system_type: str = ""
    provisioner_secret: SecretTemplate | None = None
    warnings: tuple[InvalidValue, ...] = ()


def is_file_system_type(parameter: str) -> bool:
    """Whether the parameter sets the type of the file system."""
    return parameter == FILE_SYSTEM_TYPE or parameter.lower() == _OLD_FILE_SYSTEM_TYPE


def parse_sidecar_parameters(parameters: Mapping[str, str]) -> SidecarParameters:
    """The values of these parameters; raises InvalidArgument where csi-provisioner refuses the class."""
    secrets = {kind: _secret(parameters, *_names(kind)) for kind in (*_PROVISIONER_SECRETS, *_UNUSED_SECRETS)}
    known = {FILE_SYSTEM_TYPE, *(name for kind in secrets for name in _names(kind))}
    for name in sorted(parameters.keys() - known):
        if name.startswith(SIDECAR_PREFIX):
            raise InvalidArgument(
                f"is not known, and names with {SIDECAR_PREFIX} are reserved",
                field="parameter",
                value=name,
                remedy="leave it out",
            )
    return SidecarParameters(
        file_system_type=_file_system_type(parameters),
        provisioner_secret=next(filter(None, map(secrets.get, _PROVISIONER_SECRETS)), None),
        warnings=tuple(_without_effect(kind for kind in _UNUSED_SECRETS if secrets[kind])),
    )


def _names(kind: str) -> tuple[str, str]:
    return f"{SIDECAR_PREFIX}{kind}-name", f"{SIDECAR_PREFIX}{kind}-namespace"


def _secret(
    parameters: Mapping[str, str], name_parameter: str, namespace_parameter: str
) -> SecretTemplate | None:
    if name_parameter not in parameters and namespace_parameter not in parameters:
        return None
    name, namespace = parameters.get(name_parameter, ""), parameters.get(namespace_parameter, "")
    if not name or not namespace:
        given = namespace_parameter if namespace else name_parameter
        raise InvalidArgument(
            "needs the other parameter too",
            field=f"parameters.{given}",
            remedy=f"give both {name_parameter} and {namespace_parameter}",
        )
    return SecretTemplate(namespace=namespace, name=name)


def _file_system_type(parameters: Mapping[str, str]) -> str:
    given = [name for name in parameters if is_file_system_type(name)]
    if len(given) > 1:
        names = " and ".join(sorted(given))
        raise InvalidArgument("exclude each other", field=f"parameters {names}", remedy="give one of them")
    return parameters[given[0]] if given else ""


def _without_effect(kinds: Iterator[str]) -> Iterator[InvalidValue]:
    for kind in kinds:
        yield InvalidValue(
            "has no effect because the driver does not read this Secret",
            field="parameter",
            value=_names(kind)[0],
            remedy="leave it out",
        )
