"""Objects that a person would apply: the examples of openshift-efs-stunnel's README, and variations."""

from collections.abc import Iterable

from lightkube import AsyncClient
from lightkube.codecs import load_all_yaml

from kube_efs.kube.errors import translated

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


def claim_like_example(name: str, **labels: str) -> str:
    """The example's claim under another name, selecting by these labels."""
    lines = "".join(f"      {key}: {value}\n" for key, value in labels.items())
    return EXAMPLE_CLAIM.replace("efs-example", name).replace("      volume_name: example\n", lines)


async def apply(client: AsyncClient, manifests: Iterable[str]) -> None:
    """Apply the objects of these YAML documents as ``kubectl apply --server-side`` does; raises KubeError."""
    for manifest in manifests:
        for item in load_all_yaml(manifest):
            name = (item.metadata and item.metadata.name) or ""
            with translated(f"{type(item).__name__} {name}"):
                await client.apply(item, force=True)
