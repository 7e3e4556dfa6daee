"""The steps of a SharedVolume on the embedded API server, while other clients change it."""

from contextlib import suppress
from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.types import PatchType
from tests.unit.kube.shared_volume_definition import define

from kube_efs.kube.shared_volume_store import SharedVolumeStore
from kube_efs.kube.shared_volumes import SharedVolumeResource, read_shared_volume
from kube_efs.model.errors import KubeConflict
from kube_efs.model.shared_volumes.limits import Allowance, Limits
from kube_efs.model.shared_volumes.plan import Step, decide
from kube_efs.model.shared_volumes.shared_volume import Owner, SharedVolume, SharedVolumeSource
from kube_efs.provisioning.shared_volumes import SharedVolumeSteps

OWNER = Owner(namespace="default", name="sv1")
SOURCE = SharedVolumeSource(file_system_id="fs-1234cdef", access_point_id="fsap-0123456789abcdef")
FORBIDDEN = "fsap-fedcba9876543210"
LIMITS = Limits(others=Allowance(frozenset({SOURCE.access_point_id})))


async def create(kube: AsyncClient) -> SharedVolume:
    body: dict[str, Any] = {
        "metadata": {"name": OWNER.name, "namespace": OWNER.namespace},
        "spec": {"fileSystemID": SOURCE.file_system_id, "accessPointID": SOURCE.access_point_id},
    }
    return read_shared_volume(await kube.create(SharedVolumeResource(**body)))


@pytest.mark.parametrize("edited_before", [Step.HOLD, Step.BEGIN, Step.MAKE_VOLUME])
async def test_volume_has_the_source_whose_limit_was_checked(kube: AsyncClient, edited_before: Step) -> None:
    """The older definition lets users edit the spec."""
    await define(kube)
    store = SharedVolumeStore(kube)
    steps = SharedVolumeSteps(store, LIMITS)
    found = await steps.look(await create(kube))
    with suppress(KubeConflict):
        while isinstance(step := decide(found), Step) and step is not Step.MAKE_CLAIM:
            if step is edited_before:
                edit = {"spec": {"accessPointID": FORBIDDEN}}
                await kube.patch(
                    SharedVolumeResource, OWNER.name, edit, namespace="default", patch_type=PatchType.MERGE
                )
            found = await steps.take(step, found) or found
    made = await store.volume(OWNER)
    assert made is None or made.source == SOURCE
