"""StorageClasses, claims, volumes and drivers: defaults, validation, immutable fields."""

from tests.conformance.differential.objects import claim, is_available, storage_class, volume
from tests.conformance.differential.player import Json, Player

DRY_RUN = {"dryRun": "All"}
CLAIMS, VOLUMES, CLASSES = "persistentvolumeclaims", "persistentvolumes", "storageclasses"


async def storage_classes(play: Player) -> None:
    name = play.namespace
    path = f"{CLASSES}/{name}"
    created = await play.create("create", CLASSES, storage_class(name, parameters={"a": "b"}))
    await play.put("change a parameter", path, {**created, "parameters": {"a": "c"}})
    await play.put("change the provisioner", path, {**created, "provisioner": "example.com/other"})
    await play.put("change the policy", path, {**created, "reclaimPolicy": "Retain"})
    await play.put("change the binding mode", path, {**created, "volumeBindingMode": "WaitForFirstConsumer"})
    await play.put("change everything", path, storage_class(name, provisioner="x", reclaimPolicy="Retain"))
    await play.patch("allow expansion", path, {"allowVolumeExpansion": True})
    await play.patch("mount options", path, {"mountOptions": ["ro"]})
    await play.create("no provisioner", CLASSES, storage_class("bad", provisioner=""))
    await play.create("a bad name", CLASSES, storage_class("Bad"))
    await play.delete("delete", path)


async def claims(play: Player) -> None:
    created = await play.create("create", CLAIMS, claim("one"))
    path = f"{CLAIMS}/one"

    async def change(exchange: str, spec: Json) -> None:
        await play.patch(exchange, path, {"spec": spec})

    await change("another class", {"storageClassName": "other"})
    await change("more", {"resources": {"requests": {"storage": "2Gi"}}})
    await change("other access modes", {"accessModes": ["ReadWriteOnce"]})
    await change("a selector", {"selector": {"matchLabels": {"a": "b"}}})
    await play.patch("labels", path, {"metadata": {"labels": {"a": "b"}}})
    await play.patch("the status beside its subresource", path, {"status": {"phase": "Lost"}})
    await play.put(
        "the status",
        f"{path}/status",
        {
            **created,
            "status": {"phase": "Pending", "accessModes": ["ReadOnlyMany"]},
        },
    )
    for problem, bad in {
        "no access modes": claim("bad", accessModes=[]),
        "no size": claim("bad", resources={}),
        "size zero": claim("bad", size="0"),
        "a negative size": claim("bad", size="-1Gi"),
        "a size that is none": claim("bad", size="much"),
        "no spec": {**claim("bad"), "spec": {}},
        "an unknown resource": claim("bad", resources={"requests": {"storage": "1", "cpu": "1"}}),
    }.items():
        await play.create(problem, CLAIMS, bad)
    await play.delete("delete", path)


async def volumes(play: Player) -> None:
    name = play.namespace
    path = f"{VOLUMES}/{name}"
    await play.create("create", VOLUMES, volume(name, name, mountOptions=["port=1", "tls"]))
    await play.until("it is available", path, is_available)

    async def change(exchange: str, spec: Json) -> None:
        await play.patch(exchange, path, {"spec": spec})

    await change("another server", {"nfs": {"server": "127.0.0.2"}})
    await change("another source", {"nfs": None, "hostPath": {"path": "/x"}})
    await change("other mount options", {"mountOptions": ["port=2"]})
    await change("another policy", {"persistentVolumeReclaimPolicy": "Delete"})
    await change("another size", {"capacity": {"storage": "2Gi"}})
    await change("other access modes", {"accessModes": ["ReadOnlyMany"]})
    for problem, bad in {
        "no access modes": volume("bad", accessModes=[]),
        "no size": volume("bad", capacity=None),
        "no source": volume("bad", nfs=None),
        "a bad name": volume("Bad"),
        "no spec": {**volume("bad"), "spec": {}},
    }.items():
        await play.create(problem, VOLUMES, bad)
    await play.create(
        "a CSI volume",
        VOLUMES,
        volume(
            "csi",
            nfs=None,
            csi={"driver": "efs.csi.aws.com", "volumeHandle": "fs-1", "volumeAttributes": {"a": "b"}},
        ),
        DRY_RUN,
    )
    await play.delete("delete", path)
    await play.until("it goes", path, lambda found: found.get("code") == 404)


async def drivers(play: Player) -> None:
    name = f"{play.namespace}.example.com"
    driver: Json = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": name},
        "spec": {},
    }
    created = await play.create("create", "csidrivers", driver)
    path = f"csidrivers/{name}"
    await play.put(
        "change what may change", path, {**created, "spec": {**created["spec"], "podInfoOnMount": True}}
    )
    await play.patch("other modes", path, {"spec": {"volumeLifecycleModes": ["Ephemeral"]}})
    await play.delete("delete", path)


STORIES = (storage_classes, claims, volumes, drivers)
