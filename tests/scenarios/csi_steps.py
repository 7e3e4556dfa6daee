"""Steps for scenarios of the CSI driver: classes, claims, and the AWS account."""

import itertools
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import yaml
from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import PolicyRule, RoleRef, Subject
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret
from lightkube.resources.rbac_authorization_v1 import Role, RoleBinding
from lightkube.resources.storage_v1 import StorageClass
from tests.docs.blocks import blocks_of
from tests.scenarios import steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster

from fake_efs.process import Starter
from kube_efs.aws.access_points import AwsAccessPoints
from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.model.csi.volume_handles import VolumeHandle, parse_volume_handle
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.model.volumes import Volume
from kube_efs_lab.aws import aws_options
from kube_efs_lab.program import Program

DRIVER = "efs.csi.aws.com"
MANAGER = NEW_INSTALLATION.names.controller_account

# Word for word what a user of the AWS driver has written down, except the file system's id.
SEED_CLASS = """
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
SEED_CLAIM = """
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
SEED_POD = """
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

_numbers = itertools.count(1)


def seed_class(file_system_id: FileSystemId) -> StorageClass:
    """The class of the older example, on an existing file system."""
    text = SEED_CLASS.replace("fs-09a658ebf884ec043", file_system_id)
    return cast("StorageClass", StorageClass.from_dict(yaml.safe_load(text)))


def seed_claim(namespace: str) -> PersistentVolumeClaim:
    """The claim of the older example, for a namespace."""
    body = yaml.safe_load(SEED_CLAIM)
    body["metadata"]["namespace"] = namespace
    return cast("PersistentVolumeClaim", PersistentVolumeClaim.from_dict(body))


async def new_class(
    client: AsyncClient,
    *,
    reclaim_policy: str = "Delete",
    binding_mode: str = "Immediate",
    mount_options: Sequence[str] = (),
    parameters: Mapping[str, str],
) -> str:
    """A new StorageClass of the driver; ``parameters`` are added to the required ones."""
    name = f"csi-{next(_numbers)}"
    needful = {"provisioningMode": "efs-ap", "directoryPerms": "700"}
    await client.create(
        StorageClass(
            metadata=ObjectMeta(name=name),
            provisioner=DRIVER,
            parameters={key: value for key, value in {**needful, **parameters}.items() if value != "-"},
            reclaimPolicy=reclaim_policy,
            volumeBindingMode=binding_mode,
            mountOptions=list(mount_options) or None,
        )
    )
    return name


def policy_of_pages(*pages: str) -> str:
    """The policies for the controller in these pages, in one."""
    texts = [block.text for page in pages for block in blocks_of(page) if block.language == "json"]
    statements = [statement for text in texts for statement in json.loads(text)["Statement"]]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def handle_of(volume: Volume) -> VolumeHandle:
    """The parsed handle of the volume."""
    assert volume.csi
    return parse_volume_handle(volume.csi.handle)


class Aws:
    """The AWS account of the controller, through another client."""

    def __init__(self, connection: AwsConnection) -> None:
        self.connection = connection
        self.access_points = AwsAccessPoints(connection)

    @classmethod
    @asynccontextmanager
    async def of(cls, cluster: Cluster) -> AsyncGenerator[Self, None]:
        """The account, while the context is open."""
        efs = cluster.efs
        options = aws_options(efs.endpoint_url)
        async with AwsConnection(options) as connection:
            yield cls(connection)

    async def file_system(self, zone: str | None = None) -> FileSystemId:
        """A new file system without mount targets; with a zone, a One Zone file system."""
        place = {"AvailabilityZoneName": zone} if zone else {}
        answer = await self.connection.call(
            Service.EFS, "CreateFileSystem", CreationToken=f"csi-{next(_numbers)}", **place
        )
        return FileSystemId(answer["FileSystemId"])

    async def described(self, file_system_id: FileSystemId) -> list[Mapping[str, Any]]:
        """Its access points, as AWS describes them."""
        return await self.connection.list_all(
            Service.EFS,
            "DescribeAccessPoints",
            "AccessPoints",
            subject=file_system_id,
            page_size=1000,
            FileSystemId=file_system_id,
        )

    async def ids(self, file_system_id: FileSystemId) -> set[str]:
        """The IDs of its access points."""
        return {one["AccessPointId"] for one in await self.described(file_system_id)}

    async def has_none(self, file_system_id: FileSystemId, *, seconds: float = 60) -> None:
        """Wait until it has no access point."""

        async def look() -> bool:
            return not await self.ids(file_system_id)

        await steps.eventually(look, what=f"{file_system_id} has no access point", seconds=seconds)


async def removed(cluster: Cluster, claims: Claims, name: str) -> None:
    """Delete a claim and wait until its volume is deleted."""
    volume = await claims.bound(name)
    await claims.delete(name)
    await steps.gone(cluster.client, volume.name)


async def events(cluster: Cluster, claims: Claims, name: str, reason: str) -> list[str]:
    """Wait for an event of that reason about a claim; returns the texts of all."""

    async def look() -> list[str]:
        return await steps.messages(cluster.client, claims.namespace, name, reason)

    return await steps.eventually(look, what=f"claim {name} has an event {reason}")


async def raw_volume(cluster: Cluster, name: str) -> dict[str, Any]:
    """The volume as the API server returns it."""
    found: dict[str, Any] = (await cluster.client.get(PersistentVolume, name)).to_dict()
    return found


async def text_in(
    cluster: Cluster, kind: type[ConfigMap | Secret], namespace: str, name: str, **data: str
) -> None:
    """An object with these values; it is the only one in the namespace that the controller may read."""
    metadata = ObjectMeta(namespace=namespace, name=name)
    if kind is Secret:
        await cluster.client.create(Secret(metadata=metadata, stringData=data))
    else:
        await cluster.client.create(ConfigMap(metadata=metadata, data=data))
    plural = "secrets" if kind is Secret else "configmaps"
    rule = PolicyRule(apiGroups=[""], resources=[plural], resourceNames=[name], verbs=["get"])
    await cluster.client.create(Role(metadata=metadata, rules=[rule]))
    await cluster.client.create(
        RoleBinding(
            metadata=metadata,
            roleRef=RoleRef(apiGroup="rbac.authorization.k8s.io", kind="Role", name=name),
            subjects=[Subject(kind="ServiceAccount", name=MANAGER, namespace=cluster.namespace)],
        )
    )


@asynccontextmanager
async def controller_with(
    cluster: Cluster, starter: Starter | None = None, /, **settings: str
) -> AsyncGenerator[Program, None]:
    """The controller runs with these settings while the context is open."""
    await cluster.controller.stop()
    log_file = cluster.folder / f"controller-{next(_numbers)}.log"
    other = cluster.controller.replica(log_file, settings, starter=starter)
    try:
        await other.start()
        await other.ready()
        yield other
    finally:
        await other.stop()
        await cluster.controller.start()
        await cluster.controller.ready()
