"""Binding and release of claims and volumes: the volume binder and the protection of objects in use."""

from typing import Any

from tests.conformance.differential.objects import claim, node, pod, storage_class, volume
from tests.conformance.differential.player import Json, Player

CLAIMS, VOLUMES, CLASSES = "persistentvolumeclaims", "persistentvolumes", "storageclasses"


def _phase(phase: str) -> Any:
    return lambda found: found.get("status", {}).get("phase") == phase


def _is_gone(found: Json) -> bool:
    return found.get("code") == 404


async def _volume(play: Player, name: str, body: Json, phase: str = "Available") -> None:
    await play.create(f"create the volume {name}", VOLUMES, body)
    await play.until(f"the volume {name} is {phase}", f"{VOLUMES}/{body['metadata']['name']}", _phase(phase))


async def _bound(play: Player, name: str, volume_name: str) -> None:
    await play.until(f"the claim {name} is bound", f"{CLAIMS}/{name}", _phase("Bound"))
    await play.until(f"its volume is bound to {name}", f"{VOLUMES}/{volume_name}", _phase("Bound"))


async def a_volume_for_one_claim(play: Player) -> None:
    name = play.namespace
    reference = {"namespace": play.namespace, "name": "one"}
    await _volume(play, "reserved", volume(name, name, claimRef=reference))
    await play.create("create another claim", CLAIMS, claim("other", name))
    await play.create("create the claim", CLAIMS, claim("one", name))
    await _bound(play, "one", name)
    await play.get("see the other wait", f"{CLAIMS}/other")
    await play.delete("delete the volume", f"{VOLUMES}/{name}")
    await play.get("see it protected", f"{VOLUMES}/{name}")
    await play.delete("delete the claim", f"{CLAIMS}/one")
    await play.until("the claim goes", f"{CLAIMS}/one", _is_gone)
    await play.until("the volume goes", f"{VOLUMES}/{name}", _is_gone)


async def selectors_and_sizes(play: Player) -> None:
    name = play.namespace
    for size in ("1Gi", "2Gi", "3Gi"):
        short = f"{name}-{size.lower()}"
        labels = {"part": "big" if size == "3Gi" else "small", "story": name}
        await _volume(play, size, volume(short, name, size, labels))
    await play.create("claim the smallest that fits", CLAIMS, claim("fits", name, "1536Mi"))
    await _bound(play, "fits", f"{name}-2gi")
    await play.create(
        "claim by a label", CLAIMS, claim("chosen", name, "1Gi", selector={"matchLabels": {"part": "big"}})
    )
    await _bound(play, "chosen", f"{name}-3gi")
    expression = {"matchExpressions": [{"key": "part", "operator": "In", "values": ["big"]}]}
    await play.create("claim what is taken", CLAIMS, claim("late", name, selector=expression))
    await play.create("claim too much", CLAIMS, claim("big", name, "9Gi"))
    await play.create("claim by another mode", CLAIMS, claim("mode", name, accessModes=["ReadWriteOnce"]))
    await play.create("claim by name", CLAIMS, claim("named", name, volumeName=f"{name}-1gi"))
    await _bound(play, "named", f"{name}-1gi")
    for left in ("late", "big", "mode"):
        await play.get(f"see {left} wait", f"{CLAIMS}/{left}")


async def released_and_lost(play: Player) -> None:
    name = play.namespace
    await _volume(play, "kept", volume(name, name))
    await play.create("claim it", CLAIMS, claim("one", name))
    await _bound(play, "one", name)
    await play.delete("delete the claim", f"{CLAIMS}/one")
    await play.until("the volume is released", f"{VOLUMES}/{name}", _phase("Released"))
    await play.create("claim it again", CLAIMS, claim("two", name))
    await play.until("it waits", f"{CLAIMS}/two", _phase("Pending"))
    await play.delete("delete who waits", f"{CLAIMS}/two")
    await play.until("who waits goes", f"{CLAIMS}/two", _is_gone)
    await play.patch("free the volume", f"{VOLUMES}/{name}", {"spec": {"claimRef": None}})
    await play.until("it is available again", f"{VOLUMES}/{name}", _phase("Available"))
    await play.create("claim it a third time", CLAIMS, claim("three", name))
    await _bound(play, "three", name)
    await play.delete("delete the volume", f"{VOLUMES}/{name}")
    await play.patch("let the volume go by force", f"{VOLUMES}/{name}", {"metadata": {"finalizers": None}})
    await play.until("the claim is lost", f"{CLAIMS}/three", _phase("Lost"))


async def waiting_for_a_consumer(play: Player) -> None:
    """The story acts as the scheduler and the provisioner."""
    name = play.namespace
    body = storage_class(name, volumeBindingMode="WaitForFirstConsumer")
    await play.create("create the class", CLASSES, body)
    await play.create("create a node", "nodes", node(name))
    await play.create("create the claim", CLAIMS, claim("one", name))
    await play.until("it waits", f"{CLAIMS}/one", _phase("Pending"))
    selected = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": name}}}
    await play.patch("select a node", f"{CLAIMS}/one", selected)
    provisioner = "volume.kubernetes.io/storage-provisioner"
    found = await play.until(
        "it is handed to the provisioner",
        f"{CLAIMS}/one",
        lambda found: provisioner in found["metadata"]["annotations"],
    )
    reference = {"namespace": play.namespace, "name": "one", "uid": found["metadata"]["uid"]}
    provisioned = volume(name, name, claimRef=reference)
    provisioned["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": "example.com/nobody"}
    await play.create("provision", VOLUMES, provisioned)
    await _bound(play, "one", name)


async def provisioned_at_once(play: Player) -> None:
    name = play.namespace
    await play.create("create the class", CLASSES, storage_class(name))
    await play.create("create the claim", CLAIMS, claim("one", name))
    provisioner = "volume.kubernetes.io/storage-provisioner"
    await play.until(
        "it is handed to the provisioner",
        f"{CLAIMS}/one",
        lambda found: provisioner in found["metadata"].get("annotations", {}),
    )


async def in_use(play: Player) -> None:
    name = play.namespace
    await _volume(play, "used", volume(name, name))
    await play.create("claim it", CLAIMS, claim("one", name))
    await _bound(play, "one", name)
    data = {"name": "data", "persistentVolumeClaim": {"claimName": "one"}}
    await play.create("use it", "pods", pod("user", nodeName=name, volumes=[data]))
    await play.delete("delete the claim", f"{CLAIMS}/one")
    await play.get("see it protected", f"{CLAIMS}/one")
    await play.delete("end the pod", "pods/user", {"gracePeriodSeconds": 0})
    await play.until("the claim goes", f"{CLAIMS}/one", _is_gone)
    await play.until("the volume is released", f"{VOLUMES}/{name}", _phase("Released"))


STORIES = (
    a_volume_for_one_claim,
    selectors_and_sizes,
    released_and_lost,
    waiting_for_a_consumer,
    provisioned_at_once,
    in_use,
)
