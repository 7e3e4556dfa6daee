"""What an installation is given besides what ``kube-efs render`` prints. No I/O: manifests in, manifests out.

Each function gives a copy; the one that it was given stays as it is.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kube_efs.operator.drift import digest
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.tls_profiles import TlsProfile

MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "kube-efs-operator"}
SPEC_HASH: Final = "operator.openshift.io/spec-hash"
CREDENTIALS_SECRET: Final = "aws-efs-cloud-credentials"  # noqa: S105 - the name of one
METRICS_SECRET: Final = "aws-efs-csi-driver-controller-metrics-serving-cert"  # noqa: S105 - the name of one
TRUSTED_CA: Final = "aws-efs-csi-driver-trusted-ca-bundle"
CA_KEY: Final = "ca-bundle.crt"

_CA_VOLUME: Final = "non-standard-root-system-trust-ca-bundle"
_CA_FOLDER: Final = "/etc/pki/ca-trust/extracted/pem"
_CA_FILE: Final = "tls-ca-bundle.pem"
_CREDENTIALS_FOLDER: Final = "/var/run/secrets/aws"
_TOKEN_FOLDER: Final = "/var/run/secrets/openshift/serviceaccount"  # noqa: S105 - a directory
_TOKEN_SECONDS: Final = 3600
_METRICS_FOLDER: Final = "/var/run/secrets/serving-cert"
_METRICS_PORT: Final = 9815
_MARK_PREFIX: Final = "operator.openshift.io/dep-"
_KEY_CHARACTERS: Final = 63


def labelled(manifest: Manifest) -> Manifest:
    """With the label of the objects that the operator manages."""
    changed = _copy(manifest)
    changed["metadata"].setdefault("labels", {}).update(MANAGED_BY)
    return changed


def with_spec_hash(workload: Manifest) -> Manifest:
    """With the digest of its specification, as OpenShift's operators leave it."""
    changed = _copy(workload)
    changed["metadata"].setdefault("annotations", {})[SPEC_HASH] = digest(workload["spec"])
    return changed


def with_environment(workload: Manifest, variables: Mapping[str, str]) -> Manifest:
    """With these variables in every container, instead of others of that name; without empty ones."""
    changed = _copy(workload)
    added = [{"name": name, "value": value} for name, value in sorted(variables.items()) if value]
    names = {one["name"] for one in added}
    for container in _containers(changed):
        kept = [one for one in container.get("env", ()) if one["name"] not in names]
        if kept or added:
            container["env"] = [*kept, *added]
    return changed


def with_marks(workload: Manifest, marks: Mapping[str, str]) -> Manifest:
    """With these annotations on it and on its pods, which a new value therefore replaces."""
    changed = _copy(workload)
    for metadata in (changed["metadata"], changed["spec"]["template"]["metadata"]):
        if marks:
            metadata.setdefault("annotations", {}).update(marks)
    return changed


def mark_key(namespace: str, name: str, kind: str) -> str:
    """The annotation in which OpenShift's operators note the state of a Secret or ConfigMap that pods use."""
    text = f"{namespace}.{name}.{kind}"
    if len(_MARK_PREFIX) + len(text) <= _KEY_CHARACTERS:
        return _MARK_PREFIX + text
    return (_MARK_PREFIX + hashlib.sha256(text.encode()).hexdigest())[:_KEY_CHARACTERS]


def with_trusted_ca(workload: Manifest) -> Manifest:
    """With the cluster's bundle of certificates, for the calls to AWS through a proxy that reads along."""
    changed = _copy(workload)
    item = {"key": CA_KEY, "path": _CA_FILE}
    volume = {"name": _CA_VOLUME, "configMap": {"name": TRUSTED_CA, "items": [item]}}
    _add_volume(changed, volume, _CA_FOLDER)
    return with_environment(changed, {"AWS_CA_BUNDLE": f"{_CA_FOLDER}/{_CA_FILE}"})


def with_credentials(workload: Manifest) -> Manifest:
    """With the keys or the role of the Secret, if it exists; without it the instance's role counts."""
    changed = _copy(workload)
    for container in _containers(changed):
        container["env"] = [
            *container.get("env", ()),
            {"name": "AWS_CONFIG_FILE", "value": f"{_CREDENTIALS_FOLDER}/credentials"},
            *(
                {
                    "name": key.upper(),
                    "valueFrom": {"secretKeyRef": {"name": CREDENTIALS_SECRET, "key": key, "optional": True}},
                }
                for key in ("aws_access_key_id", "aws_secret_access_key")
            ),
        ]
    secret = {"name": "aws-credentials", "secret": {"secretName": CREDENTIALS_SECRET, "optional": True}}
    _add_volume(changed, secret, _CREDENTIALS_FOLDER)
    token = {"audience": "openshift", "expirationSeconds": _TOKEN_SECONDS, "path": "token"}
    projected = {"name": "bound-sa-token", "projected": {"sources": [{"serviceAccountToken": token}]}}
    _add_volume(changed, projected, _TOKEN_FOLDER)
    return changed


def with_metrics_certificate(workload: Manifest, terms: TlsProfile) -> Manifest:
    """With the certificate for metrics, as soon as there is one: a pod does not wait for it."""
    changed = _copy(workload)
    secret = {"name": "metrics-certificate", "secret": {"secretName": METRICS_SECRET, "optional": True}}
    _add_volume(changed, secret, _METRICS_FOLDER)
    for container in _containers(changed):
        port = {"name": "metrics", "containerPort": _METRICS_PORT, "protocol": "TCP"}
        container["ports"] = [*container.get("ports", ()), port]
    variables = {
        "KUBE_EFS_METRICS_CERTIFICATE_FOLDER": _METRICS_FOLDER,
        "KUBE_EFS_METRICS_PORT": str(_METRICS_PORT),
        "KUBE_EFS_METRICS_TLS_VERSION": terms.version,
        "KUBE_EFS_METRICS_TLS_CIPHERS": ",".join(terms.ciphers),
    }
    return with_environment(changed, variables)


def with_replicas(workload: Manifest, replicas: int) -> Manifest:
    """With that many pods."""
    changed = _copy(workload)
    changed["spec"]["replicas"] = replicas
    return changed


def _add_volume(workload: dict[str, Any], volume: dict[str, Any], folder: str) -> None:
    pod = workload["spec"]["template"]["spec"]
    pod["volumes"] = [*pod.get("volumes", ()), volume]
    for container in _containers(workload):
        mount = {"name": volume["name"], "mountPath": folder, "readOnly": True}
        container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]


def _containers(workload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from workload["spec"]["template"]["spec"]["containers"]


def _copy(manifest: Manifest) -> dict[str, Any]:
    return copy.deepcopy(dict(manifest))
