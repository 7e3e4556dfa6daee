"""The settings that the operator passes to the processes that it installs."""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kube_efs.model.errors import InvalidValue
from kube_efs.settings.base import Environment
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.fields import Reader, Variable, read_yaml, setting, variables
from kube_efs.settings.node import NodeSettings
from kube_efs.settings.secure_metrics import SecureMetricsSettings
from kube_efs.settings.tunnel import TunnelSettings


def setting_names(kind: type[Environment]) -> frozenset[str]:
    """The variables that the process reads as settings."""
    return frozenset(_by_name(kind))


def _by_name(kind: type[Environment]) -> Mapping[str, Variable[Any]]:
    return {one.name: one for one in variables(kind).values()}


# By the command of each process.
PROCESSES: Final[Mapping[str, type[Environment]]] = {
    "controller": ControllerSettings,
    "tunnel": TunnelSettings,
    "node": NodeSettings,
}
PREFIX: Final = "KUBE_EFS_"
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
HEALTH_HOST: Final = "KUBE_EFS_HEALTH_HOST"
# With this address, the metrics can be read from outside of the node.
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - the metrics for Prometheus
# Of the processes on the network of the node. Their probes are at 127.0.0.1: with any other address, the
# kubelet would restart the pods, and so interrupt all mounts of the node, again and again.
HEALTH_HOSTS: Final = (ALL_ADDRESSES, "127.0.0.1", "localhost")
HEALTH_HOST_REMEDY: Final = f"the kubelet probes 127.0.0.1; use {ALL_ADDRESSES} or 127.0.0.1"
# The controller has a network of its own, so its probes are at the address of its pod.
LOOPBACK_HOST: Final = r"^(127\..*|localhost|::1)$"
LOOPBACK_HOST_REMEDY: Final = f"the kubelet probes the address of the pod; use {ALL_ADDRESSES}"
# The volumes, ports, probes, replicas and roles in the manifests depend on the values of these variables.
KEPT_BY_MANIFESTS: Final = frozenset(
    {
        "CSI_ENDPOINT",
        "DRIVER_REG_SOCK_PATH",
        "KUBECONFIG",
        "KUBE_EFS_DRIVER_HEALTH_PORT",
        "KUBE_EFS_HEALTH_PORT",
        "KUBE_EFS_LEADER_ELECTION",
        "KUBE_EFS_LEASE_NAME",
        "KUBE_EFS_NAMES",
        "KUBE_EFS_REGISTRATION_FOLDER",
        "KUBE_EFS_STATE_DIR",
        "KUBE_EFS_TUNNEL_SOCKET",
        "NODE_NAME",
        "POD_NAME",
        "POD_NAMESPACE",
        "STORAGE_PROVISIONER_NAME",
    }
)
_KEPT: Final[dict[str, str]] = {
    **dict.fromkeys(KEPT_BY_MANIFESTS, "is set by the manifests"),
    "KUBE_EFS_LEADER_ELECTION": "is always true, because there are two controllers",
    "AWS_REGION": "is set by AWS_REGION of the operator",
    "WORKER_IMAGE": "is set by KUBE_EFS_IMAGE of the operator",
    **dict.fromkeys(
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        "belongs in the Secret aws-efs-cloud-credentials",
    ),
}
# The operator sets these variables of the controller itself where they have an effect.
_KEPT_OF_CONTROLLER: Final[dict[str, str]] = {
    "AWS_CONFIG_FILE": "belongs in the Secret aws-efs-cloud-credentials",
    **dict.fromkeys(setting_names(SecureMetricsSettings), "is set by the operator on OpenShift"),
}


def _accepted_by(kind: type[Environment]) -> Reader[Mapping[str, str]]:
    """Reads a mapping of variables of that process to values that it accepts, as text."""

    def read(document: str) -> Mapping[str, str]:
        found = read_yaml(document)
        if not isinstance(found, Mapping):
            raise ValueError("is not a mapping")  # noqa: TRY004 - readers raise ValueError
        texts = {str(name): _text(str(name), one) for name, one in found.items()}
        for name, text in texts.items():
            _check(kind, name, text)
        return texts

    return read


def _text(name: str, value: object) -> str:
    """The text of a value for a variable; a value that is not text becomes JSON."""
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except TypeError:
        raise ValueError(f"has a value for {name} that is not JSON") from None


def _check(kind: type[Environment], name: str, text: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"names {name!r}, which is not a variable name")
    kept = _KEPT | _KEPT_OF_CONTROLLER if kind is ControllerSettings else _KEPT
    if name in kept:
        raise ValueError(f"has {name}, which {kept[name]}")
    if name == HEALTH_HOST and kind is not ControllerSettings and text not in HEALTH_HOSTS:
        raise ValueError(f"has {text!r} for {name}, but {HEALTH_HOST_REMEDY}")
    if name == HEALTH_HOST and kind is ControllerSettings and re.match(LOOPBACK_HOST, text):
        raise ValueError(f"has {text!r} for {name}, but {LOOPBACK_HOST_REMEDY}")
    known = _by_name(kind)
    if name in known:
        _read(known[name], text)
    elif name.startswith(PREFIX) or any(name in setting_names(other) for other in PROCESSES.values()):
        near = difflib.get_close_matches(name, known, n=1)
        raise ValueError(
            f"has {name}, which that process does not have" + (f" (did you mean {near[0]}?)" if near else "")
        )


def _read(variable: Variable[Any], text: str) -> Any:  # noqa: ANN401 - of any setting
    """The value that the process will read from the text."""
    try:
        return variable.read(text)
    except (ValueError, InvalidValue):
        accepts = variable.accepts.replace("`", "")
        raise ValueError(f"has {text!r} for {variable.name}, which accepts {accepts}") from None


def _variables(name: str, command: str, kind: type[Environment], example: str) -> Mapping[str, str]:
    return setting(
        name,
        {},
        f"Additional variables that the operator sets for `kube-efs {command}`.",
        read=_accepted_by(kind),
        accepts=f"a mapping in JSON or YAML such as `{example}`",
        shown="none",
    )


@dataclass(frozen=True, kw_only=True)
class InstalledSettings(Environment):
    """The settings of the processes that the operator installs, each with its own variables."""

    controller: Mapping[str, str] = _variables(
        "KUBE_EFS_CONTROLLER_SETTINGS", "controller", ControllerSettings, '{"KUBE_EFS_STATUS_PAGE": true}'
    )
    tunnel: Mapping[str, str] = _variables(
        "KUBE_EFS_TUNNEL_SETTINGS", "tunnel", TunnelSettings, '{"KUBE_EFS_HEALTH_HOST": "0.0.0.0"}'
    )
    node: Mapping[str, str] = _variables(
        "KUBE_EFS_NODE_SETTINGS", "node", NodeSettings, '{"KUBE_EFS_VOLUME_METRICS": true}'
    )

    @property
    def observes(self) -> bool:
        """Whether the controller measures volumes or serves its page, for which it needs permissions."""
        known = _by_name(ControllerSettings)
        return any(
            _read(known[name], self.controller.get(name, "0"))
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
    return variables.get(HEALTH_HOST) == ALL_ADDRESSES
