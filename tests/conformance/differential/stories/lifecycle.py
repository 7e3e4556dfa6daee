"""Creation, updates, conflicts, deletions, names, dry runs, namespaces."""

from tests.conformance.differential.objects import config_map, namespace, secret
from tests.conformance.differential.player import Player

DRY_RUN = {"dryRun": "All"}


async def updates_and_conflicts(play: Player) -> None:
    created = await play.create("create", "configmaps", config_map("one", labels={"a": "b"}))
    await play.create("create it again", "configmaps", config_map("one"))
    await play.get("get it", "configmaps/one")
    await play.get("get what is not there", "configmaps/none")
    changed = await play.put("update it", "configmaps/one", {**created, "data": {"key": "other"}})
    await play.put("update it with a stale version", "configmaps/one", {**created, "data": {}})
    await play.put("update nothing", "configmaps/one", changed)
    await play.put("update it without a version", "configmaps/one", config_map("one", {"key": "third"}))
    await play.put("update what is not there", "configmaps/none", config_map("none"))
    await play.put("update it under another name", "configmaps/one", config_map("two"))
    await play.put("update with another uid", "configmaps/one", config_map("one", uid="another"))
    await play.put("update in another namespace", "configmaps/one", config_map("one", namespace="default"))
    await play.delete("delete it", "configmaps/one")
    await play.delete("delete it again", "configmaps/one")


async def what_cannot_be_created(play: Player) -> None:
    await play.create("with a version", "configmaps", config_map("one", resourceVersion="1"))
    await play.create("in another namespace", "configmaps", config_map("one", namespace="default"))
    await play.create(
        "in a namespace that is not there", "/api/v1/namespaces/none/configmaps", config_map("one")
    )
    await play.create("of another kind", "configmaps", secret("one"))
    await play.create("of another version", "configmaps", {**config_map("one"), "apiVersion": "v2"})
    await play.create("without a kind", "configmaps", {"metadata": {"name": "untyped"}})
    await play.create("without a name", "configmaps", {"apiVersion": "v1", "kind": "ConfigMap"})
    await play.create("with a bad name", "configmaps", config_map("No_Name"))
    await play.create("with a long name", "configmaps", config_map("x" * 254))
    await play.create("with bad labels", "configmaps", config_map("one", labels={"a b": "c"}))
    await play.create(
        "with an owner without a uid",
        "configmaps",
        config_map(
            "one", ownerReferences=[{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": ""}]
        ),
    )
    await play.create("with a number as a value", "configmaps", config_map("one", {"key": 1}))
    await play.send("from no JSON", "POST", "configmaps", b"{")
    await play.send("from a list", "POST", "configmaps", b"[]")
    await play.send("from nothing", "POST", "configmaps", b"")
    await play.send("from text", "POST", "configmaps", b"name: one", content_type="text/plain")
    await play.create("in a collection that is not there", "/api/v1/namespaces/default/widgets", {})
    await play.create("in a group that is not there", "/apis/none.example.com/v1/widgets", {})
    await play.create("at a name", "configmaps/one", config_map("one"))


async def fields_that_are_not_known(play: Player) -> None:
    body = {**config_map("one"), "extra": 1}
    await play.create("by default", "configmaps", body)
    await play.create(
        "ignored", "configmaps", {**body, "metadata": {"name": "b"}}, {"fieldValidation": "Ignore"}
    )
    await play.create(
        "refused", "configmaps", {**body, "metadata": {"name": "c"}}, {"fieldValidation": "Strict"}
    )
    await play.create("in metadata", "configmaps", config_map("d", extra=1), {"fieldValidation": "Strict"})


async def names_that_are_generated(play: Player) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "made-"}}
    made = await play.create("generate a name", "secrets", body)
    await play.get("get it by its name", f"secrets/{made['metadata']['name']}")
    await play.create("generate a bad name", "secrets", {**body, "metadata": {"generateName": "Made-"}})
    await play.create(
        "name both", "secrets", {**body, "metadata": {"generateName": "made-", "name": "named"}}
    )


async def dry_runs(play: Player) -> None:
    await play.create("create nothing", "secrets", secret("one"), DRY_RUN)
    await play.get("see nothing", "secrets/one")
    await play.create("create it", "secrets", secret("one"))
    await play.put("update nothing", "secrets/one", secret("one", labels={"a": "b"}), DRY_RUN)
    await play.patch("patch nothing", "secrets/one", {"metadata": {"labels": {"c": "d"}}}, DRY_RUN)
    await play.delete("delete nothing", "secrets/one", query=DRY_RUN)
    await play.delete("delete nothing by options", "secrets/one", {"dryRun": ["All"]})
    await play.get("see it unchanged", "secrets/one")
    await play.create("a dry run of another kind", "secrets", secret("two"), {"dryRun": "Some"})


async def finalizers(play: Player) -> None:
    held = await play.create(
        "create", "configmaps", config_map("held", finalizers=["example.com/a", "example.com/b"])
    )
    await play.delete("delete", "configmaps/held")
    deleting = await play.get("get what is being deleted", "configmaps/held")
    await play.delete("delete again", "configmaps/held")
    await play.create("create in its place", "configmaps", config_map("held"))
    more = {"metadata": {"finalizers": ["example.com/a", "example.com/b", "example.com/c"]}}
    await play.patch("add a finalizer", "configmaps/held", more)
    await play.patch("revive", "configmaps/held", {"metadata": {"deletionTimestamp": None}})
    await play.patch("change data", "configmaps/held", {"data": {"key": "still"}})
    await play.put(
        "release with a stale version",
        "configmaps/held",
        {
            **held,
            "metadata": {
                **deleting["metadata"],
                "finalizers": [],
                "resourceVersion": held["metadata"]["resourceVersion"],
            },
        },
    )
    await play.patch("release half", "configmaps/held", {"metadata": {"finalizers": ["example.com/b"]}})
    await play.patch("release", "configmaps/held", {"metadata": {"finalizers": None}})
    await play.get("see it gone", "configmaps/held")


async def preconditions(play: Player) -> None:
    created = await play.create("create", "configmaps", config_map("one"))
    version = created["metadata"]["resourceVersion"]
    another = "00000000-0000-0000-0000-000000000000"
    await play.delete("another uid", "configmaps/one", {"preconditions": {"uid": another}})
    await play.patch("move on", "configmaps/one", {"data": {"a": "b"}})
    await play.delete("an old version", "configmaps/one", {"preconditions": {"resourceVersion": version}})
    await play.delete("an unknown policy", "configmaps/one", {"propagationPolicy": "Sideways"})
    await play.delete("a negative grace period", "configmaps/one", {"gracePeriodSeconds": -1})
    again = await play.create("create another", "configmaps", config_map("two"))
    await play.delete("the right uid", "configmaps/two", {"preconditions": {"uid": again["metadata"]["uid"]}})


async def dependents(play: Player) -> None:
    owner = await play.create("create the owner", "secrets", secret("owner"))
    reference = {"apiVersion": "v1", "kind": "Secret", "name": "owner", "uid": owner["metadata"]["uid"]}
    await play.create("create the owned", "configmaps", config_map("owned", ownerReferences=[reference]))
    await play.delete("delete the owner", "secrets/owner", {"propagationPolicy": "Background"})
    await play.until("the owned goes", "configmaps/owned", lambda found: found.get("code") == 404)

    keeper = await play.create("create a keeper", "secrets", secret("keeper"))
    reference = {"apiVersion": "v1", "kind": "Secret", "name": "keeper", "uid": keeper["metadata"]["uid"]}
    await play.create("create the kept", "configmaps", config_map("kept", ownerReferences=[reference]))
    await play.delete("delete the keeper", "secrets/keeper", {"propagationPolicy": "Orphan"})
    await play.until("the keeper goes", "secrets/keeper", lambda found: found.get("code") == 404)
    await play.get("see the kept", "configmaps/kept")

    waiting = await play.create("create who waits", "secrets", secret("waiting"))
    reference = {"apiVersion": "v1", "kind": "Secret", "name": "waiting", "uid": waiting["metadata"]["uid"]}
    blocking = {**reference, "blockOwnerDeletion": True}
    held = config_map("blocking", ownerReferences=[blocking], finalizers=["example.com/hold"])
    await play.create("create the blocking", "configmaps", held)
    await play.delete("delete who waits", "secrets/waiting", {"propagationPolicy": "Foreground"})
    await play.until(
        "the blocking is asked to go",
        "configmaps/blocking",
        lambda found: "deletionTimestamp" in found["metadata"],
    )
    await play.get("see who waits", "secrets/waiting")
    await play.patch("let the blocking go", "configmaps/blocking", {"metadata": {"finalizers": None}})
    await play.until("who waits goes", "secrets/waiting", lambda found: found.get("code") == 404)


async def collections(play: Player) -> None:
    for name in ("a", "b", "c"):
        await play.create(f"create {name}", "secrets", secret(name, labels={"first": str(name == "a")}))
    await play.create("create a held one", "secrets", secret("held", finalizers=["example.com/hold"]))
    await play.delete("delete some", "secrets", query={"labelSelector": "first=True"})
    await play.delete("delete by a bad selector", "secrets", query={"labelSelector": "a==b=c"})
    await play.delete("delete all", "secrets")
    await play.get("see who is left", "secrets")
    await play.patch("let the last go", "secrets/held", {"metadata": {"finalizers": []}})
    await play.get("see nobody", "secrets")
    await play.delete("delete all namespaces", "namespaces")


async def namespaces(play: Player) -> None:
    name = f"{play.namespace}-inner"
    inside = f"/api/v1/namespaces/{name}/secrets"
    await play.create("create", "namespaces", namespace(name))
    await play.create("create inside", inside, secret("held", finalizers=["example.com/hold"]))
    await play.delete("delete", f"namespaces/{name}")
    await play.until(
        "what is inside is asked to go",
        f"{inside}/held",
        lambda found: "deletionTimestamp" in found["metadata"],
    )
    await play.create("create inside while it ends", inside, secret("late"))
    await play.patch("release", f"{inside}/held", {"metadata": {"finalizers": None}})
    await play.until("it goes", f"namespaces/{name}", lambda found: found.get("code") == 404)
    await play.create("create inside when it is gone", inside, secret("late"))
    await play.create("a bad name", "namespaces", namespace("no.dots"))
    await play.delete("delete what must stay", "namespaces/default")
    await play.delete("delete what must stay too", "namespaces/kube-system")
    await play.patch("label it", f"namespaces/{play.namespace}", {"metadata": {"labels": {"a": "b"}}})


STORIES = (
    updates_and_conflicts,
    what_cannot_be_created,
    fields_that_are_not_known,
    names_that_are_generated,
    dry_runs,
    finalizers,
    preconditions,
    dependents,
    collections,
    namespaces,
)
