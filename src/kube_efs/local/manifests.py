"""Objects that a person would apply: the examples of the older systems' READMEs, and variations."""

import json
from collections.abc import Iterable
from typing import Any

import yaml
from lightkube import AsyncClient
from lightkube.codecs import from_dict

from kube_efs.kube.errors import translated

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

STORAGE_CLASS = """\
kind: StorageClass
apiVersion: storage.k8s.io/v1
metadata:
  name: efs-stunnel
provisioner: gnuthought.com/efs-stunnel
parameters:
  default_file_system_id: auto
reclaimPolicy: Delete
"""

EXAMPLE_CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: efs-example
spec:
  accessModes:
  - ReadWriteMany
  resources:
    requests:
      storage: 1Gi
  selector:
    matchLabels:
      volume_name: example
  storageClassName: efs-stunnel
"""

# The class of efs-provisioner's README, with its provisioner and parameters.
DIRECTORY_CLASS = """\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: slow
provisioner: example.com/aws-efs
parameters:
  gidMin: "40000"
  gidMax: "50000"
  gidAllocate: "true"
"""

DIRECTORY_CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: efs
spec:
  accessModes:
  - ReadWriteMany
  resources:
    requests:
      storage: 1Mi
  storageClassName: slow
"""


def claim_like_example(name: str, **labels: str) -> str:
    """The example's claim under another name, selecting by these labels."""
    lines = "".join(f"      {key}: {value}\n" for key, value in labels.items())
    return EXAMPLE_CLAIM.replace("efs-example", name).replace("      volume_name: example\n", lines)


async def apply(client: AsyncClient, manifests: Iterable[str]) -> None:
    """Apply the objects of these YAML documents as ``kubectl apply --server-side`` does; raises KubeError."""
    for manifest in manifests:
        for body in yaml.safe_load_all(manifest):
            name = body["metadata"]["name"]
            with translated(f"{body['kind']} {name}"):
                await client.apply(from_dict(_with_note(body)), force=True)


def _with_note(body: dict[str, Any]) -> dict[str, Any]:
    """The object with what kubectl would otherwise miss, and warn of, when a person applies it again."""
    bare = {**body, "metadata": {**body["metadata"], "annotations": {}}}
    note = json.dumps(bare, separators=(",", ":"), sort_keys=True) + "\n"
    return {**body, "metadata": {**body["metadata"], "annotations": {_LAST_APPLIED: note}}}
