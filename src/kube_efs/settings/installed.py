"""The settings that the operator passes to the processes that it installs."""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, cast

from pydantic import BeforeValidator, ValidationError, create_model
from pydantic_settings import NoDecode

from kube_efs.settings.base import Environment
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.fields import read_yaml, setting
from kube_efs.settings.node import NodeSettings
from kube_efs.settings.tunnel import TunnelSettings

_PROCESSES: Final = (ControllerSettings, TunnelSettings, NodeSettings)
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_PREFIX: Final = "KUBE_EFS_"
_HEALTH_HOST: Final = "KUBE_EFS_HEALTH_HOST"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_BY_MANIFEST: Final = "is set by the manifests"
# The manifests set these variables, and their volumes, ports, probes and roles depend on the values.
_KEPT: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "CSI_ENDPOINT",
            "DRIVER_REG_SOCK_PATH",
            "KUBECONFIG",
            "KUBE_EFS_HEALTH_PORT",
            "KUBE_EFS_LEASE_NAME",
            "KUBE_EFS_NAMES",
            "KUBE_EFS_REGISTRATION_FOLDER",
            "KUBE_EFS_STATE_DIR",
            "KUBE_EFS_TUNNEL_SOCKET",
            "NODE_NAME",
            "POD_NAME",
            "POD_NAMESPACE",
            "STORAGE_PROVISIONER_NAME",
        ),
        _BY_MANIFEST,
    ),
    "AWS_REGION": "is set by AWS_REGION of the operator",
    "WORKER_IMAGE": "is set by KUBE_EFS_IMAGE of the operator",
    **dict.fromkeys(
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        "belongs in the Secret aws-efs-cloud-credentials",
    ),
}


def _accepted_by(kind: type[Environment]) -> BeforeValidator:
    """Reads a mapping of variables of that process to values that it accepts, as text."""

    def read(value: object) -> object:
        found = read_yaml(value)
        if not isinstance(found, Mapping):
            raise ValueError("is not a mapping")  # noqa: TRY004 - pydantic collects these
        texts = {str(name): _text(str(name), one) for name, one in found.items()}
        for name, text in texts.items():
            _check(kind, name, text)
        return texts

    return BeforeValidator(read)


def _text(name: str, value: object) -> str:
    """The text of a value for a variable; a value that is not text becomes JSON."""
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except TypeError:
        raise ValueError(f"has a value for {name} that is not JSON") from None


def _check(kind: type[Environment], name: str, text: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"names {name!r}, which is not a variable name")
    if name in _KEPT:
        raise ValueError(f"has {name}, which {_KEPT[name]}")
    known = _names(kind)
    if name in known:
        _parsed(kind, name, text)
    elif name.startswith(_PREFIX) or any(name in _names(other) for other in _PROCESSES):
        near = difflib.get_close_matches(name, known, n=1)
        raise ValueError(
            f"has {name}, which that process does not have" + (f" (did you mean {near[0]}?)" if near else "")
        )


def _names(kind: type[Environment]) -> list[str]:
    return [str(field.validation_alias) for field in kind.model_fields.values()]


def _parsed(kind: type[Environment], name: str, text: str) -> Any:  # noqa: ANN401 - of any field
    """The value that the process will read from the text."""
    (field,) = [one for one in kind.model_fields.values() if one.validation_alias == name]
    try:
        # Alone, because the complete settings would also be read from the environment of this process.
        alone = create_model("Alone", value=cast("Any", (field.annotation, field)))
        return alone.model_validate({name: text}).value  # type: ignore[attr-defined]
    except ValidationError:
        accepts = field.json_schema_extra["accepts"] if isinstance(field.json_schema_extra, dict) else ""
        plain = str(accepts).replace("`", "")
        raise ValueError(f"has {text!r} for {name}, which accepts {plain}") from None


def _variables(name: str, command: str, example: str) -> Any:  # noqa: ANN401 - a field
    return setting(
        name,
        dict,
        f"Additional variables that the operator sets for `kube-efs {command}`.",
        accepts=f"a mapping in JSON or YAML such as `{example}`",
        shown="none",
    )


class InstalledSettings(Environment):
    """The settings of the processes that the operator installs, each with its own variables."""

    controller: Annotated[Mapping[str, str], NoDecode, _accepted_by(ControllerSettings)] = _variables(
        "KUBE_EFS_CONTROLLER_SETTINGS", "controller", '{"KUBE_EFS_STATUS_PAGE": true}'
    )
    tunnel: Annotated[Mapping[str, str], NoDecode, _accepted_by(TunnelSettings)] = _variables(
        "KUBE_EFS_TUNNEL_SETTINGS", "tunnel", '{"KUBE_EFS_HEALTH_HOST": "0.0.0.0"}'
    )
    node: Annotated[Mapping[str, str], NoDecode, _accepted_by(NodeSettings)] = _variables(
        "KUBE_EFS_NODE_SETTINGS", "node", '{"KUBE_EFS_VOLUME_METRICS": true}'
    )

    @property
    def observes(self) -> bool:
        """Whether the controller measures volumes or serves its page, for which it needs permissions."""
        return any(
            _parsed(ControllerSettings, name, self.controller.get(name, "0"))
            for name in ("KUBE_EFS_USAGE_INTERVAL_SECONDS", "KUBE_EFS_STATUS_PAGE")
        )

    @property
    def opens_tunnel(self) -> bool:
        """Whether the metrics of the tunnels can be read from outside of their node."""
        return _is_open(self.tunnel)

    @property
    def opens_node(self) -> bool:
        """Whether the metrics of the CSI driver can be read from outside of its node."""
        return _is_open(self.node)


def _is_open(variables: Mapping[str, str]) -> bool:
    return variables.get(_HEALTH_HOST, "127.0.0.1") not in _LOOPBACK
