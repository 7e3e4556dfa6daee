"""Lists, selectors, pages, watches, and the formats of objects."""

from tests.conformance.differential.objects import (
    claim,
    lease,
    pod,
    secret,
    storage_class,
    volume,
)
from tests.conformance.differential.player import TABLE, Player


async def lists_and_selectors(play: Player) -> None:
    for name, labels in {"a": {"tier": "front"}, "b": {"tier": "back"}, "c": {}}.items():
        await play.create(f"create {name}", "secrets", secret(name, labels=labels))
    for selector in (
        "tier=front",
        "tier!=front",
        "tier in (front,back)",
        "!tier",
        "tier",
        "tier notin (back)",
    ):
        await play.get(f"labels: {selector}", "secrets", {"labelSelector": selector})
    for selector in ("tier=a b", "=x", "tier in ()", "a=b,,"):
        await play.get(f"bad labels: {selector}", "secrets", {"labelSelector": selector})
    for selector in (
        "metadata.name=a",
        "metadata.name!=a",
        "type=Opaque",
        f"metadata.namespace={play.namespace}",
    ):
        await play.get(f"fields: {selector}", "secrets", {"fieldSelector": selector})
    for selector in ("spec.none=a", "metadata.labels=a", "metadata.name"):
        await play.get(f"bad fields: {selector}", "secrets", {"fieldSelector": selector})
    await play.get("pods by phase", "pods", {"fieldSelector": "status.phase=Pending,spec.nodeName="})
    await play.get("an empty list", "leases")
    await play.get("any version", "secrets", {"resourceVersion": "0"})
    await play.get("the list of a kind that is not there", f"/api/v1/namespaces/{play.namespace}/widgets")
    await play.get("a subresource that is not there", "secrets/a/status")
    await play.send("a method that does not fit", "PUT", "secrets", secret("a"))
    await play.send("post to an object", "POST", "secrets/a", secret("a"))


async def pages(play: Player) -> None:
    for name in "abcde":
        await play.create(f"create {name}", "leases", lease(name, name))
    first = await play.get("the first page", "leases", {"limit": "2"})
    more = {"limit": "2", "continue": first["metadata"]["continue"]}
    second = await play.get("the second page", "leases", more)
    await play.get("the last page", "leases", {"limit": "2", "continue": second["metadata"]["continue"]})
    await play.get("a page with a selector", "leases", {"limit": "1", "fieldSelector": "metadata.name!=a"})
    await play.get("a page of garbage", "leases", {"limit": "1", "continue": "garbage"})
    await play.get("a limit that is no number", "leases", {"limit": "many"})


async def watches(play: Player) -> None:
    created = await play.create("create", "secrets", secret("a", labels={"in": "yes"}))
    version = created["metadata"]["resourceVersion"]
    await play.create("create another", "secrets", secret("b"))
    await play.patch("change", "secrets/a", {"metadata": {"labels": {"more": "x"}}})
    await play.patch("leave the selection", "secrets/a", {"metadata": {"labels": {"in": None}}})
    await play.patch("enter the selection", "secrets/b", {"metadata": {"labels": {"in": "yes"}}})
    await play.delete("delete", "secrets/a")
    await play.delete("delete the other", "secrets/b")
    since = {"resourceVersion": version}
    await play.watch("all from a version", "secrets", since, events=6)
    await play.watch("selected from a version", "secrets", {**since, "labelSelector": "in"}, events=4)
    await play.watch(
        "one name from a version", "secrets", {**since, "fieldSelector": "metadata.name=b"}, events=3
    )
    await play.create("create a third", "secrets", secret("c"))
    await play.watch("from the start", "secrets", events=1)
    await play.watch("from any version", "secrets", {"resourceVersion": "0"}, events=1)
    await play.watch("until it ends", "secrets", {"timeoutSeconds": "1"}, events=9)
    await play.watch("one object", "secrets/c", events=1)


async def watches_that_cannot_be(play: Player) -> None:
    watch = {"watch": "true"}
    await play.get(
        "a match without initial events", "secrets", {**watch, "resourceVersionMatch": "NotOlderThan"}
    )
    await play.get("a bad selector", "secrets", {**watch, "labelSelector": "a=b=c"})
    await play.get("a bad field", "secrets", {**watch, "fieldSelector": "spec.none=1"})
    await play.get("a kind that is not there", "/api/v1/widgets", watch)


async def tables(play: Player) -> None:
    await play.create("create a class", "storageclasses", storage_class(play.namespace))
    await play.get("a class", f"storageclasses/{play.namespace}", accept=TABLE)
    claimed = await play.create("create a claim", "persistentvolumeclaims", claim("one"))
    await play.get("a claim", "persistentvolumeclaims/one", accept=TABLE)
    await play.get("claims", "persistentvolumeclaims", accept=TABLE)
    await play.create("create a volume", "persistentvolumes", volume(play.namespace, "other"))
    await play.until(
        "it is available",
        f"persistentvolumes/{play.namespace}",
        lambda found: found["status"]["phase"] == "Available",
    )
    await play.get("a volume", f"persistentvolumes/{play.namespace}", accept=TABLE)
    await play.create("create a pod", "pods", pod("one"))
    await play.get("a pod", "pods/one", accept=TABLE)
    await play.get("what nobody accepts", "pods/one", accept="text/html")
    await play.get("a table or else JSON", "pods/one", accept=f"{TABLE},application/json")
    await play.get("what is not there as a table", "pods/none", accept=TABLE)
    await play.get("claims in pages", "persistentvolumeclaims", {"limit": "1"}, accept=TABLE)
    watch = {"resourceVersion": claimed["metadata"]["resourceVersion"]}
    await play.patch("label the claim", "persistentvolumeclaims/one", {"metadata": {"labels": {"a": "b"}}})
    await play.watch("claims as they change", "persistentvolumeclaims", watch, events=1, accept=TABLE)


STORIES = (lists_and_selectors, pages, watches, watches_that_cannot_be, tables)
