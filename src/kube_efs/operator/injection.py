"""Adds to workloads what they need in this cluster: proxy, trusted CAs, credentials, certificate. No I/O.

Each function returns a changed copy of the manifest.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kube_efs.operator.cluster_facts import (
    CREDENTIALS_SECRET,
    TRUSTED_CA_CONFIG_MAP,
    TRUSTED_CA_KEY,
    TlsProfile,
)
from kube_efs.operator.kinds import MANAGED_BY
from kube_efs.operator.manifests import Manifest, digest

SPEC_HASH: Final = "operator.openshift.io/spec-hash"
DEPENDENCY_PREFIX: Final = "operator.openshift.io/dep-"
METRICS_SECRET: Final = "aws-efs-csi-driver-controller-metrics-serving-cert"  # noqa: S105 - the name of one

_CA_VOLUME: Final = "non-standard-root-system-trust-ca-bundle"
_CA_DIRECTORY: Final = "/etc/pki/ca-trust/extracted/pem"
_CA_FILE: Final = "tls-ca-bundle.pem"
_CREDENTIALS_DIRECTORY: Final = "/var/run/secrets/aws"
_TOKEN_DIRECTORY: Final = "/var/run/secrets/openshift/serviceaccount"  # noqa: S105 - a directory
_TOKEN_SECONDS: Final = 3600
_METRICS_DIRECTORY: Final = "/var/run/secrets/serving-cert"
_METRICS_PORT: Final = 9815
_KEY_MAX_CHARACTERS: Final = 63


def with_managed_by(manifest: Manifest) -> Manifest:
    """With the label of the objects that the operator installed."""
    changed = _copy(manifest)
    changed["metadata"].setdefault("labels", {}).update(MANAGED_BY)
    return changed


def with_spec_hash(workload: Manifest) -> Manifest:
    """With the digest of its specification in the annotation that OpenShift's operators use."""
    changed = _copy(workload)
    changed["metadata"].setdefault("annotations", {})[SPEC_HASH] = digest(workload["spec"])
    return changed


def with_environment(workload: Manifest, variables: Mapping[str, str]) -> Manifest:
    """With these variables in every container, also instead of existing ones. Empty values are ignored."""
    changed = _copy(workload)
    added = [{"name": name, "value": value} for name, value in sorted(variables.items()) if value]
    names = {one["name"] for one in added}
    for container in _containers(changed):
        kept = [one for one in container.get("env", ()) if one["name"] not in names]
        if kept or added:
            container["env"] = [*kept, *added]
    return changed


def with_dependencies(workload: Manifest, versions: Mapping[str, str]) -> Manifest:
    """With these annotations on the workload and its pod template: a new version replaces the pods."""
    changed = _copy(workload)
    for metadata in (changed["metadata"], changed["spec"]["template"]["metadata"]):
        if versions:
            metadata.setdefault("annotations", {}).update(versions)
    return changed


def dependency_key(namespace: str, name: str, kind: str) -> str:
    """The annotation for the version of a Secret or ConfigMap that pods use, as in OpenShift's operators."""
    text = f"{namespace}.{name}.{kind}"
    if len(DEPENDENCY_PREFIX) + len(text) <= _KEY_MAX_CHARACTERS:
        return DEPENDENCY_PREFIX + text
    return (DEPENDENCY_PREFIX + hashlib.sha256(text.encode()).hexdigest())[:_KEY_MAX_CHARACTERS]


def with_trusted_ca(workload: Manifest) -> Manifest:
    """With the cluster's trusted CAs, for calls to AWS through a proxy that decrypts TLS."""
    changed = _copy(workload)
    item = {"key": TRUSTED_CA_KEY, "path": _CA_FILE}
    volume = {"name": _CA_VOLUME, "configMap": {"name": TRUSTED_CA_CONFIG_MAP, "items": [item]}}
    _add_volume(changed, volume, _CA_DIRECTORY)
    return with_environment(changed, {"AWS_CA_BUNDLE": f"{_CA_DIRECTORY}/{_CA_FILE}"})


def with_credentials(workload: Manifest) -> Manifest:
    """With the keys or the role of the Secret. Without the Secret, the role of the instance is used."""
    changed = _copy(workload)
    for container in _containers(changed):
        container["env"] = [
            *container.get("env", ()),
            {"name": "AWS_CONFIG_FILE", "value": f"{_CREDENTIALS_DIRECTORY}/credentials"},
            *(
                {
                    "name": key.upper(),
                    "valueFrom": {"secretKeyRef": {"name": CREDENTIALS_SECRET, "key": key, "optional": True}},
                }
                for key in ("aws_access_key_id", "aws_secret_access_key")
            ),
        ]
    secret = {"name": "aws-credentials", "secret": {"secretName": CREDENTIALS_SECRET, "optional": True}}
    _add_volume(changed, secret, _CREDENTIALS_DIRECTORY)
    token = {"audience": "openshift", "expirationSeconds": _TOKEN_SECONDS, "path": "token"}
    projected = {"name": "bound-sa-token", "projected": {"sources": [{"serviceAccountToken": token}]}}
    _add_volume(changed, projected, _TOKEN_DIRECTORY)
    return changed


def with_metrics_certificate(workload: Manifest, profile: TlsProfile) -> Manifest:
    """With the certificate for metrics. The Secret is optional, so a pod starts before it exists."""
    changed = _copy(workload)
    secret = {"name": "metrics-certificate", "secret": {"secretName": METRICS_SECRET, "optional": True}}
    _add_volume(changed, secret, _METRICS_DIRECTORY)
    for container in _containers(changed):
        port = {"name": "metrics", "containerPort": _METRICS_PORT, "protocol": "TCP"}
        container["ports"] = [*container.get("ports", ()), port]
    variables = {
        "KUBE_EFS_METRICS_CERTIFICATE_FOLDER": _METRICS_DIRECTORY,
        "KUBE_EFS_METRICS_PORT": str(_METRICS_PORT),
        "KUBE_EFS_METRICS_TLS_VERSION": profile.min_version,
        "KUBE_EFS_METRICS_TLS_CIPHERS": ",".join(profile.ciphers),
    }
    return with_environment(changed, variables)


def with_pod_annotations(workload: Manifest, annotations: Mapping[str, str]) -> Manifest:
    """With these annotations on the pod template."""
    changed = _copy(workload)
    metadata = changed["spec"]["template"]["metadata"]
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    return changed


def with_replicas(workload: Manifest, replicas: int) -> Manifest:
    """With that number of pods."""
    changed = _copy(workload)
    changed["spec"]["replicas"] = replicas
    return changed


def _add_volume(workload: dict[str, Any], volume: dict[str, Any], directory: str) -> None:
    pod = workload["spec"]["template"]["spec"]
    pod["volumes"] = [*pod.get("volumes", ()), volume]
    for container in _containers(workload):
        mount = {"name": volume["name"], "mountPath": directory, "readOnly": True}
        container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]


def _containers(workload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from workload["spec"]["template"]["spec"]["containers"]


def _copy(manifest: Manifest) -> dict[str, Any]:
    return copy.deepcopy(dict(manifest))
