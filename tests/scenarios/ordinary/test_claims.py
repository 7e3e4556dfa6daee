"""Claims that are served, and the events of refused claims."""

import asyncio
import stat

import pytest
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.tunnel_volumes import CHOSEN_FILE_SYSTEM, REJECT_REASON, REJECTED
from kube_efs.model.volumes import NfsSource, VolumePhase

pytestmark = pytest.mark.asyncio(loop_scope="session")

LABELS = "spec.selector.matchLabels"
NAMES = "use a-z, 0-9 and _, and - after the first character"


async def test_claim_gets_a_volume_behind_the_tunnel(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(
        steps.claim(namespace, "example", storage_class, {"volume_name": "example", "tier": "gold"})
    )

    volume = await steps.bound_volume(client, namespace, "example")

    first = min(cluster.file_system_ids)
    port = await steps.port_of(cluster, first)
    assert volume.nfs == NfsSource(server="127.0.0.1", path=f"/{namespace}/example")
    assert volume.mount_options == (f"port={port}",)
    assert volume.name.startswith(f"efs-stunnel-{first}-{namespace}-example-")
    assert volume.labels == {"volume_name": "example", "tier": "gold"}
    assert volume.provisioned_by == steps.PROVISIONER
    assert volume.file_system_id == first
    assert volume.reclaim_policy is ReclaimPolicy.DELETE
    assert volume.access_modes == ("ReadWriteMany",)
    assert volume.capacity == "1Gi"
    folder = cluster.efs.folder(first) / namespace / "example"
    assert folder.stat().st_mode & 0o7777 == 0o777
    assert await steps.messages(client, namespace, "example", "Provisioning") == [
        f"Creating {first}:/{namespace}/example for claim {namespace}/example"
    ]
    assert await steps.eventually(
        lambda: steps.messages(client, namespace, "example", "ProvisioningSucceeded"), what="success is shown"
    ) == [f"Volume {volume.name} is ready at {first}:/{namespace}/example"]


async def test_served_claim_gets_only_the_annotation_for_the_choice_of_auto(
    cluster: Cluster,
) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    for name, named in (("chosen", {}), ("named", {"file_system_id": cluster.file_system_ids[0]})):
        labels = {"volume_name": name, **named}
        await client.create(steps.claim(namespace, name, storage_class, labels))
        volume = await steps.bound_volume(client, namespace, name)

        found = await steps.annotations(client, namespace, name)

        uid = volume.claim and volume.claim.uid
        chosen = None if named else f"{volume.file_system_id}/{uid}"
        assert found.pop(CHOSEN_FILE_SYSTEM, None) == chosen
        assert {key.partition("/")[0] for key in found} <= {
            "pv.kubernetes.io",
            "volume.kubernetes.io",
            "volume.beta.kubernetes.io",
        }


REFUSALS = {
    "no selector": (None, {}, "spec.selector: is missing; give matchLabels with a volume_name"),
    "no volume_name": (
        {"tier": "gold"},
        {},
        f"{LABELS}.volume_name: is missing; name the directory with a-z, 0-9, _ and -",
    ),
    "upper-case volume_name": (
        {"volume_name": "Example"},
        {},
        f"{LABELS}.volume_name: 'Example' is not allowed; {NAMES}",
    ),
    "volume_name with a dot": (
        {"volume_name": "a..b"},
        {},
        f"{LABELS}.volume_name: 'a..b' is not allowed; {NAMES}",
    ),
    "invalid reclaim_policy": (
        {"volume_name": "a", "reclaim_policy": "Recycle"},
        {},
        f"{LABELS}.reclaim_policy: 'Recycle' is not a reclaim policy; use Delete or Retain",
    ),
    "file system not allowed": (
        {"volume_name": "a", "file_system_id": "fs-11111111"},
        {"file_system_ids": "fs-22222222,fs-33333333"},
        (
            f"{LABELS}.file_system_id: 'fs-11111111' is not allowed;"
            f" StorageClass {{storage_class}} allows fs-22222222, fs-33333333"
        ),
    ),
    "no file system and no default": (
        {"volume_name": "a"},
        {"default_file_system_id": ""},
        (
            f"{LABELS}.file_system_id: is missing;"
            f" give it, or set default_file_system_id in StorageClass {{storage_class}}"
        ),
    ),
    "malformed default": (
        {"volume_name": "a"},
        {"default_file_system_id": "efs/0"},
        (
            "StorageClass {storage_class} parameters.default_file_system_id: 'efs/0' is not a valid file "
            "system ID;"
            " use ids such as fs-0123456789abcdef0"
        ),
    ),
}


@pytest.mark.parametrize(("labels", "parameters", "expected"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_refused_claim_gets_an_event_with_the_reason(
    cluster: Cluster, labels: dict[str, str] | None, parameters: dict[str, str], expected: str
) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, **{"default_file_system_id": "auto", **parameters})
    await client.create(steps.claim(namespace, "refused", storage_class, labels))

    text = await steps.warning(client, namespace, "refused")

    assert text == expected.format(storage_class=storage_class)
    marked = await steps.eventually(
        lambda: _rejection(cluster, namespace, "refused"), what="the claim is marked rejected"
    )
    assert marked == text
    assert await steps.volumes_of(client, namespace) == []


async def test_refused_claim_is_served_after_its_class_is_corrected(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client)
    await client.create(steps.claim(namespace, "early", storage_class, {"volume_name": "early"}))
    await steps.eventually(
        lambda: _rejection(cluster, namespace, "early"), what="the claim is marked rejected"
    )

    await client.delete(StorageClass, storage_class)
    corrected = StorageClass(
        metadata={"name": storage_class},  # type: ignore[arg-type]  # the client takes a mapping too
        provisioner=steps.PROVISIONER,
        parameters={"default_file_system_id": "auto"},
    )
    await client.create(corrected)

    await steps.bound_volume(client, namespace, "early")
    found = await steps.annotations(client, namespace, "early")
    assert REJECTED not in found
    assert REJECT_REASON not in found


async def test_claims_of_other_classes_are_not_changed(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    other = StorageClass(metadata={"name": f"other-{namespace}"}, provisioner="example.com/other")  # type: ignore[arg-type]
    await client.create(other)
    await client.create(steps.claim(namespace, "foreign", f"other-{namespace}", {"volume_name": "foreign"}))
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "ours", storage_class, {"volume_name": "ours"}))

    await steps.bound_volume(client, namespace, "ours")

    assert [volume.claim.name for volume in await steps.volumes_of(client, namespace) if volume.claim] == [
        "ours"
    ]
    assert await steps.messages(client, namespace, "foreign", "ProvisioningFailed") == []


async def test_claims_with_one_volume_name_share_the_directory_until_the_last_is_deleted(
    cluster: Cluster,
) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    for name in ("one", "two"):
        await client.create(steps.claim(namespace, name, storage_class, {"volume_name": "shared"}))
    one = await steps.bound_volume(client, namespace, "one")
    two = await steps.bound_volume(client, namespace, "two")
    assert one.name != two.name
    assert one.nfs == two.nfs
    folder = cluster.efs.folder(min(cluster.file_system_ids)) / namespace / "shared"
    await asyncio.to_thread((folder / "file").write_text, "kept")

    await client.delete(PersistentVolumeClaim, "one", namespace=namespace)
    await steps.gone(client, one.name)
    assert (folder / "file").read_text() == "kept"

    await client.delete(PersistentVolumeClaim, "two", namespace=namespace)
    await steps.gone(client, two.name)
    assert not folder.exists()


async def test_retain_keeps_volume_and_data_for_the_next_claim_of_that_name(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    labels = {"volume_name": "kept", "reclaim_policy": "Retain"}
    await client.create(steps.claim(namespace, "before", storage_class, labels))
    before = await steps.bound_volume(client, namespace, "before")
    folder = cluster.efs.folder(min(cluster.file_system_ids)) / namespace / "kept"
    await asyncio.to_thread((folder / "file").write_text, "still here")

    await client.delete(PersistentVolumeClaim, "before", namespace=namespace)

    async def released() -> bool:
        found = await client.get(PersistentVolume, before.name)
        return bool(found.status and found.status.phase == VolumePhase.RELEASED)

    await steps.eventually(released, what="the volume is Released")
    await client.create(steps.claim(namespace, "after", storage_class, labels))
    after = await steps.bound_volume(client, namespace, "after")
    assert after.name != before.name
    assert after.nfs == before.nfs
    assert (folder / "file").read_text() == "still here"
    assert await released()


async def _rejection(cluster: Cluster, namespace: str, name: str) -> str | None:
    found = await steps.annotations(cluster.client, namespace, name)
    return found.get(REJECT_REASON) if found.get(REJECTED) == "true" else None


@pytest.mark.parametrize(("given", "mode"), [("0777", 0o777), ("2770", 0o2770), ("", 0o700)])
async def test_existing_directory_gets_the_mode_of_the_class(cluster: Cluster, given: str, mode: int) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto", directory_mode=given)
    folder = cluster.efs.folder(min(cluster.file_system_ids)) / namespace / "of-before"
    await asyncio.to_thread(folder.mkdir, 0o700, parents=True)
    await asyncio.to_thread((folder / "file").write_text, "kept")

    await client.create(steps.claim(namespace, "data", storage_class, {"volume_name": "of-before"}))
    await steps.bound_volume(client, namespace, "data")

    assert stat.S_IMODE(folder.stat().st_mode) == mode
    assert (folder / "file").read_text() == "kept"
