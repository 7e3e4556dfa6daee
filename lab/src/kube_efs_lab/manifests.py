"""Objects that a person would apply: the examples of the older systems' READMEs, and variations."""

import json
from collections.abc import Iterable
from typing import Any

import yaml
from lightkube import AsyncClient
from lightkube.codecs import from_dict

from kube_efs.kube.errors import translated
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.operator.manifests import render_asset, text_of

STORAGE_CLASS_NAME = NEW_INSTALLATION.names.storage_class
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

STORAGE_CLASS = f"""\
kind: StorageClass
apiVersion: storage.k8s.io/v1
metadata:
  name: {STORAGE_CLASS_NAME}
provisioner: gnuthought.com/efs-stunnel
parameters:
  default_file_system_id: auto
reclaimPolicy: Delete
"""

EXAMPLE_CLAIM = f"""\
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
  storageClassName: {STORAGE_CLASS_NAME}
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


# Those that every installation with the driver has.
CSI_DRIVER = text_of(render_asset("csi-driver", {"pod_tokens": True}), as_json=False)
SHARED_VOLUMES = text_of(render_asset("shared-volumes-crd", {}), as_json=False)

# The class, the claim and the pod that a user of the AWS driver has written down; the file system is another.
ACCESS_POINT_CLASS = """\
kind: StorageClass
apiVersion: storage.k8s.io/v1
metadata:
  name: efs-sc-1
provisioner: efs.csi.aws.com
mountOptions:
  - tls
volumeBindingMode: Immediate # Default
reclaimPolicy: Delete # Default
parameters:
  provisioningMode: efs-ap
  fileSystemId: fs-09a658ebf884ec043
  directoryPerms: "700"
  uid: "1000"
  gid: "1000"
  gidRangeStart: "1000" # optional
  gidRangeEnd: "2000" # optional
  basePath: "/dynamic_provisioning" # optional
"""

ACCESS_POINT_CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: efs-claim-1
spec:
  accessModes:
    - ReadWriteMany
  storageClassName: efs-sc-1
  resources:
    requests:
      storage: 5Gi
"""

ACCESS_POINT_POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: efs-app-1
spec:
  containers:
    - name: app
      image: centos
      command: ["/bin/sh"]
      args: ["-c", "while true; do echo $(date -u) >> /data/out1; sleep 5; done"]
      volumeMounts:
        - name: persistent-storage
          mountPath: /data
  volumes:
    - name: persistent-storage
      persistentVolumeClaim:
        claimName: efs-claim-1
"""


# A second pod of the claim, which ends once it has read what the first one has written.
READER_POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: efs-reader
spec:
  restartPolicy: Never
  containers:
    - name: reader
      image: centos
      command: ["/bin/sh"]
      args: ["-c", "until grep . /data/out1; do sleep 0.2; done"]
      volumeMounts:
        - name: persistent-storage
          mountPath: /data
          readOnly: true
  volumes:
    - name: persistent-storage
      persistentVolumeClaim:
        claimName: efs-claim-1
"""


# What aws-efs-operator's README has, except for the ids; the pod ends after it has read what others write.
_SHARED_VOLUME = """\
apiVersion: aws-efs.managed.openshift.io/v1alpha1
kind: SharedVolume
metadata:
  name: sv1
  namespace: proj2
spec:
  accessPointID: fsap-0123456789abcdef
  fileSystemID: fs-1234cdef
"""

SHARED_VOLUME_POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: pod1
  namespace: proj2
spec:
  restartPolicy: Never
  volumes:
    - name: efsap1
      persistentVolumeClaim:
        claimName: pvc-sv1
  containers:
    - name: test-efs-pod
      image: centos:latest
      command: ["/bin/sh", "-c", "--"]
      args: ["until grep . /mnt/efs-data/out1; do sleep 0.2; done"]
      volumeMounts:
        - mountPath: /mnt/efs-data
          name: efsap1
"""


def shared_volume(file_system_id: str, access_point_id: str) -> str:
    """The SharedVolume of an access point that is there."""
    return _SHARED_VOLUME.replace("fs-1234cdef", file_system_id).replace(
        "fsap-0123456789abcdef", access_point_id
    )


def access_point_class(file_system_id: FileSystemId) -> str:
    """The class, on a file system that is there."""
    return ACCESS_POINT_CLASS.replace("fs-09a658ebf884ec043", file_system_id)


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
