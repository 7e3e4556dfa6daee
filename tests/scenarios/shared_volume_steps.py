"""Steps for scenarios of SharedVolumes, each in its own namespace."""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import yaml
from lightkube import ApiError
from lightkube.core.resource import Resource
from lightkube.models.core_v1 import (
    Container,
    PersistentVolumeClaimVolumeSource,
    PodSpec,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, PersistentVolume, PersistentVolumeClaim, Pod
from lightkube.types import PatchType
from tests.conformance.kubectl import Kubectl
from tests.scenarios import steps
from tests.scenarios.csi_steps import Aws
from tests.scenarios.steps import Cluster

from kube_efs.kube.reading import read_claim
from kube_efs.kube.shared_volumes import (
    SharedVolumeResource,
    read_marked_claim,
    read_marked_volume,
    read_shared_volume,
)
from kube_efs.model.csi.access_points import AccessPoint, AccessPointRequest, PosixUser
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.shared_volumes.shared_volume import (
    GROUP,
    PLURAL,
    MarkedClaim,
    MarkedVolume,
    Owner,
    SharedVolume,
    SharedVolumePhase,
)
from kube_efs.operator.manifests import load_asset

CRD = f"{PLURAL}.{GROUP}"

# Word for word what the README of aws-efs-operator has, except the ids.
SEED = """
apiVersion: aws-efs.managed.openshift.io/v1alpha1
kind: SharedVolume
metadata:
  name: sv1
spec:
  accessPointID: fsap-0123456789abcdef
  fileSystemID: fs-1234cdef
"""
SEED_POD = """
kind: Pod
metadata:
  name: pod1
spec:
  volumes:
    - name: efsap1
      persistentVolumeClaim:
        claimName: pvc-sv1
  containers:
    - name: test-efs-pod
      image: centos:latest
      command: [ "/bin/bash", "-c", "--" ]
      args: [ "while true; do sleep 30; done;" ]
      volumeMounts:
        - mountPath: /mnt/efs-data
          name: efsap1
"""
FILE_SYSTEM, ACCESS_POINT, OTHER_POINT = "fs-1234cdef", "fsap-0123456789abcdef", "fsap-fedcba9876543210"

OWNER_ID = 123456
_numbers = itertools.count(1)


def definition(*, enforced: bool = True) -> str:
    """The CustomResourceDefinition; unless ``enforced``, without rules, as that of aws-efs-operator."""
    (body,) = load_asset("shared-volumes-crd")
    if not enforced:
        schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for field in schema["properties"]["spec"]["properties"].values():
            del field["x-kubernetes-validations"]
    return yaml.safe_dump(body)


async def define(cluster: Cluster, *, enforced: bool = True) -> None:
    """Apply the definition, and wait until it is served."""
    kubectl = Kubectl(cluster.kubeconfig)
    await kubectl(
        "replace" if await _is_defined(kubectl) else "create", "-f", "-", stdin=definition(enforced=enforced)
    )
    await kubectl("wait", f"crd/{CRD}", "--for=condition=Established", "--timeout=30s")


async def _is_defined(kubectl: Kubectl) -> bool:
    return (await kubectl.run("get", "crd", CRD)).status == 0


class SharedVolumes:
    """The SharedVolumes of a namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._client = cluster.client
        self.namespace = namespace
        self.kubectl = Kubectl(cluster.kubeconfig)

    @classmethod
    async def of(cls, cluster: Cluster, **annotations: str) -> Self:
        """A new namespace."""
        name = f"proj{next(_numbers)}"
        return await cls.named(cluster, name, **annotations)

    @classmethod
    async def named(cls, cluster: Cluster, name: str, **annotations: str) -> Self:
        """A namespace of this name."""
        await cluster.client.create(Namespace(metadata=ObjectMeta(name=name, annotations=annotations)))
        return cls(cluster, name)

    def owner(self, name: str) -> Owner:
        """The owner of a SharedVolume of this namespace."""
        return Owner(namespace=self.namespace, name=name)

    async def create(
        self, name: str = "sv1", *, file_system: str = FILE_SYSTEM, access_point: str = ACCESS_POINT
    ) -> Owner:
        """Create a SharedVolume."""
        body = {
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"fileSystemID": file_system, "accessPointID": access_point},
        }
        await self._client.create(SharedVolumeResource(**cast("Any", body)))
        return self.owner(name)

    async def get(self, name: str = "sv1") -> SharedVolume | None:
        """The current SharedVolume."""
        found = await self._found(SharedVolumeResource, name)
        return read_shared_volume(found) if found else None

    async def volume(self, name: str = "sv1") -> MarkedVolume | None:
        """Its current volume."""
        found = await self._found(PersistentVolume, self.owner(name).volume_name)
        return read_marked_volume(found) if found else None

    async def claim(self, name: str = "sv1") -> MarkedClaim | None:
        """Its current claim."""
        found = await self._found(PersistentVolumeClaim, self.owner(name).claim_name)
        return read_marked_claim(found) if found else None

    async def _found(self, kind: type[Resource], name: str) -> dict[str, Any] | None:
        client: Any = self._client
        scope = {} if kind is PersistentVolume else {"namespace": self.namespace}
        try:
            body: dict[str, Any] = (await client.get(kind, name, **scope)).to_dict()
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise
        return body

    async def in_phase(self, phase: SharedVolumePhase, name: str = "sv1") -> SharedVolume:
        """Wait until the SharedVolume is in this phase."""
        return await self.becomes(lambda shared: shared.status.phase is phase, f"is {phase}", name)

    async def becomes(
        self, is_so: Callable[[SharedVolume], bool], what: str, name: str = "sv1"
    ) -> SharedVolume:
        """Wait until the SharedVolume meets the condition."""

        async def look() -> SharedVolume | None:
            shared = await self.get(name)
            return shared if shared and is_so(shared) else None

        return await steps.eventually(look, what=f"SharedVolume {self.namespace}/{name} {what}")

    async def bound(self, name: str = "sv1") -> MarkedClaim:
        """Wait until its claim is Bound and its status shows it."""
        await self.becomes(lambda shared: bool(shared.status.bound), "knows that its claim is bound", name)

        async def look() -> MarkedClaim | None:
            claim = await self.claim(name)
            return claim if claim and claim.claim.phase == "Bound" else None

        return await steps.eventually(look, what=f"claim of {self.namespace}/{name} is Bound")

    async def edit(self, name: str = "sv1", **spec: str) -> None:
        """Change fields of the spec; raises ApiError."""
        await self._client.patch(
            SharedVolumeResource, name, {"spec": spec}, namespace=self.namespace, patch_type=PatchType.MERGE
        )

    async def delete(self, name: str = "sv1") -> None:
        """Delete it."""
        await self._client.delete(SharedVolumeResource, name, namespace=self.namespace)

    async def gone(self, name: str = "sv1") -> None:
        """Wait until it is deleted; fails if any of its objects is left."""
        await self._until_none(lambda: self.get(name), f"SharedVolume {self.namespace}/{name}")
        assert await self.claim(name) is None
        assert await self.volume(name) is None

    async def removed(self, name: str = "sv1") -> None:
        """Delete it, and wait until none of its objects is left."""
        await self.delete(name)
        await self.gone(name)

    async def delete_claim(self, name: str = "sv1") -> None:
        """Delete its claim."""
        await self._client.delete(
            PersistentVolumeClaim, self.owner(name).claim_name, namespace=self.namespace
        )

    async def _until_none(self, look: Callable[[], Awaitable[object]], what: str) -> None:
        async def is_none() -> bool:
            return await look() is None

        await steps.eventually(is_none, what=f"{what} is gone")

    async def event_text(self, reason: str, name: str = "sv1") -> str:
        """Wait for an event of this reason; returns its text."""

        async def look() -> list[str]:
            return await steps.messages(self._client, self.namespace, name, reason)

        return (await steps.eventually(look, what=f"{self.namespace}/{name} has an event {reason}"))[0]

    def pod(self, name: str, *, claim: str = "pvc-sv1", node: str = "nowhere") -> Pod:
        """A pod that uses a claim, on a node that does not exist."""
        source = PersistentVolumeClaimVolumeSource(claimName=claim)
        return Pod(
            metadata=ObjectMeta(name=name, namespace=self.namespace),
            spec=PodSpec(
                nodeName=node,
                automountServiceAccountToken=False,
                containers=[
                    Container(
                        name="user",
                        image="example.com/user",
                        volumeMounts=[VolumeMount(name="data", mountPath="/data")],
                    )
                ],
                volumes=[Volume(name="data", persistentVolumeClaim=source)],
            ),
        )

    @asynccontextmanager
    async def used(self, *pods: str) -> AsyncGenerator[None, None]:
        """Pods use the claim while the context is open."""
        for name in pods:
            await self._client.create(self.pod(name))
        try:
            yield
        finally:
            for name in pods:
                await self._client.delete(Pod, name, namespace=self.namespace, grace_period=0)

    async def run(self, name: str, script: str, *, claim: str = "pvc-sv1") -> None:
        """Run a script in a pod with the volume; it must succeed."""
        body = self.pod(name, claim=claim)
        assert body.spec
        (container,) = body.spec.containers
        assert container.volumeMounts
        container.command, container.image = ["/bin/sh", "-c", script], "centos"
        container.volumeMounts[0].mountPath = "/mnt/efs-data"
        body.spec.nodeName, body.spec.restartPolicy = None, "Never"
        await self._client.create(body)
        await self.pod_in_phase(name, "Succeeded")

    async def pod_in_phase(self, name: str, phase: str) -> None:
        """Wait until a pod is in this phase."""

        async def look() -> bool:
            found = await self._client.get(Pod, name, namespace=self.namespace)
            return found.status is not None and found.status.phase == phase

        await steps.eventually(look, what=f"pod {self.namespace}/{name} is {phase}")

    async def end_pods(self, *names: str) -> None:
        """Delete pods and wait until they are deleted."""
        for name in names:
            await self._client.delete(Pod, name, namespace=self.namespace, grace_period=1)
            await self._until_none(lambda name=name: self._found(Pod, name), f"pod {name}")  # type: ignore[misc]


async def new_access_point(cluster: Cluster) -> AccessPoint:
    """A new access point of the first file system, whose directory belongs to ``OWNER_ID``."""
    number = next(_numbers)
    request = AccessPointRequest(
        client_token=f"shared-volumes-{number}",
        file_system_id=cluster.file_system_ids[0],
        directory=parse_directory(f"/shared-{number}"),
        permissions="775",
        user=PosixUser(uid=OWNER_ID, gid=OWNER_ID),
        tags=(),
    )
    async with Aws.of(cluster) as aws:
        return await aws.access_points.create(request)


async def claim_by_hand(volumes: SharedVolumes, cluster: Cluster, name: str, volume: str = "") -> str:
    """Create a claim manually; returns its UID."""
    body = steps.claim(volumes.namespace, name, "efs-sc", None)
    assert body.spec
    body.spec.volumeName = volume or None
    return read_claim((await cluster.client.create(body)).to_dict()).uid
