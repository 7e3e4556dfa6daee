"""Pods, nodes, leases, events, roles and the kinds of workloads."""

from tests.conformance.differential.objects import event, lease, node, pod, workload
from tests.conformance.differential.player import TABLE, Json, Player

DRY_RUN = {"dryRun": "All"}


async def pods(play: Player) -> None:
    created = await play.create(
        "create",
        "pods",
        pod("one", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
    )
    for problem, bad in {
        "no containers": pod("bad", containers=[]),
        "no spec": {**pod("bad"), "spec": {}},
    }.items():
        await play.create(problem, "pods", bad)
    resources = {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}}
    await play.create(
        "with resources",
        "pods",
        pod("sized", containers=[{"name": "main", "image": "x", "resources": resources}]),
        DRY_RUN,
    )
    probed = {
        "name": "main",
        "image": "x:latest",
        "livenessProbe": {"httpGet": {"path": "/", "port": 80}},
        "ports": [{"containerPort": 80}],
    }
    await play.create("with probes", "pods", pod("probed", containers=[probed]), DRY_RUN)
    projected = {"name": "p", "projected": {"sources": [{"configMap": {"name": "c"}}]}}
    volumes = [
        {"name": "c", "configMap": {"name": "c"}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "h", "hostPath": {"path": "/h"}},
        projected,
    ]
    await play.create("with volumes", "pods", pod("volumes", volumes=volumes), DRY_RUN)
    await play.put(
        "another node name", "pods/one", {**created, "spec": {**created["spec"], "nodeName": "other"}}
    )
    status: Json = {
        **created,
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    running = await play.put("its status", "pods/one/status", status)
    await play.put("its status again", "pods/one/status", running)
    await play.get("as a table", "pods/one", accept=TABLE)
    await play.get("by phase", "pods", {"fieldSelector": "status.phase=Running"})
    await play.delete("delete what does not run", "pods/one")
    await play.get("see it gone", "pods/one")


async def binding(play: Player) -> None:
    name = f"{play.namespace}-node"
    await play.create("create a node", "nodes", node(name))
    await play.create("create", "pods", pod("one"))
    target: Json = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "one"},
        "target": {"kind": "Node", "name": name},
    }
    await play.create("under another name", "pods/one/binding", {**target, "metadata": {"name": "two"}})
    await play.create(
        "under another uid", "pods/one/binding", {**target, "metadata": {"name": "one", "uid": "other"}}
    )
    await play.create("of what is not there", "pods/none/binding", {**target, "metadata": {"name": "none"}})
    await play.create("to the node", "pods/one/binding", target)
    await play.create("again", "pods/one/binding", target)
    await play.get("see it bound", "pods/one")
    await play.delete("delete with a grace period", "pods/one", {"gracePeriodSeconds": 60})
    await play.get("see it end", "pods/one")
    await play.delete("delete with a longer one", "pods/one", {"gracePeriodSeconds": 90})
    await play.delete("delete with a shorter one", "pods/one", {"gracePeriodSeconds": 30})
    await play.get("as a table", "pods/one", accept=TABLE)
    await play.delete("delete at once", "pods/one", {"gracePeriodSeconds": 0})
    await play.get("see it gone", "pods/one")
    await play.patch("a node's status", f"nodes/{name}/status", {"status": {"capacity": {"pods": "10"}}})
    await play.delete("delete the node", f"nodes/{name}")


async def eviction(play: Player) -> None:
    name = f"{play.namespace}-node"
    await play.create("create a node", "nodes", node(name))
    await play.create("create", "pods", pod("one"))
    target = {"kind": "Node", "name": name}
    await play.create("send it there", "pods/one/binding", {"metadata": {"name": "one"}, "target": target})
    wanted: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one"}}
    await play.get("read one", "pods/one/eviction")
    await play.create("of what is not there", "pods/none/eviction", {**wanted, "metadata": {"name": "none"}})
    await play.create("under another name", "pods/one/eviction", {**wanted, "metadata": {"name": "two"}})
    other = {"preconditions": {"uid": "other"}}
    await play.create("under another uid", "pods/one/eviction", {**wanted, "deleteOptions": other})
    await play.create("only as a trial", "pods/one/eviction", wanted, DRY_RUN)
    await play.create("evict", "pods/one/eviction", {**wanted, "deleteOptions": {"gracePeriodSeconds": 20}})
    await play.get("see it end", "pods/one")
    await play.create("evict it again", "pods/one/eviction", wanted)
    await play.create("at once", "pods/one/eviction", {**wanted, "deleteOptions": {"gracePeriodSeconds": 0}})
    await play.get("see it gone", "pods/one")
    await play.create("what does not run", "pods", pod("two"))
    await play.create("evict that", "pods/two/eviction", {**wanted, "metadata": {"name": "two"}})
    await play.get("see that gone", "pods/two")
    await play.delete("delete the node", f"nodes/{name}")


async def leases(play: Player) -> None:
    moment = "2026-01-02T03:04:05.000006Z"
    created = await play.create(
        "acquire", "leases", lease("leader", "a", renewTime=moment, acquireTime=moment)
    )
    taken = {**created, "spec": {**created["spec"], "holderIdentity": "b", "leaseTransitions": 1}}
    await play.put("take over", "leases/leader", taken)
    await play.put("renew what was lost", "leases/leader", created)
    await play.put("without a version", "leases/leader", lease("leader", "c"))
    await play.create("a bad time", "leases", lease("bad", "a", renewTime="yesterday"))
    await play.delete("release", "leases/leader")


async def events(play: Player) -> None:
    await play.create("an event", "events", event("old", play.namespace))
    await play.patch("count it", "events/old", {"count": 2, "lastTimestamp": "2026-01-02T03:05:05Z"})
    await play.get(
        "by what they are about", "events", {"fieldSelector": "involvedObject.name=about,type=Normal"}
    )
    await play.create(
        "in another namespace",
        "events",
        event("bad", play.namespace, involvedObject={"namespace": "default", "name": "x"}),
    )
    await play.delete("delete", "events/old")


async def workloads(play: Player) -> None:
    for kind, plural in {
        "Deployment": "deployments",
        "DaemonSet": "daemonsets",
        "StatefulSet": "statefulsets",
    }.items():
        body = workload(kind, "one", **({"serviceName": "one"} if kind == "StatefulSet" else {}))
        await play.create(f"a {kind}", plural, body, DRY_RUN)
    other = workload("Deployment", "bad", selector={"matchLabels": {"app": "other"}})
    await play.create("a selector that does not fit", "deployments", other, DRY_RUN)
    await play.create("no selector", "deployments", workload("Deployment", "bad", selector=None), DRY_RUN)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "one"}}
    await play.create("a service account", "serviceaccounts", account, DRY_RUN)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "one"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    }
    await play.create("a role", "roles", role)
    subject = {"kind": "ServiceAccount", "name": "one", "namespace": play.namespace}
    grant = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "one"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"},
        "subjects": [subject],
    }
    await play.create("a grant", "rolebindings", grant)
    await play.patch("another role", "rolebindings/one", {"roleRef": {"name": "two"}})


async def reviews_and_discovery(play: Player) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}},
    }
    await play.create("may I", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    await play.get("versions", "/api")
    await play.get("the storage group", "/apis/storage.k8s.io")
    await play.get("a group that is not there", "/apis/none.example.com")
    await play.get("a path that is not there", "/none")
    await play.get("health", "/healthz")


STORIES = (pods, binding, eviction, leases, events, workloads, reviews_and_discovery)
