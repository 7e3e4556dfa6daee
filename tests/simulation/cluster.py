"""The other parts of a cluster: binding and protection of volumes and claims, scheduling, kubelets and pods.

Each part sees a change with a delay, and uses the state of that moment.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from tests.simulation.apiserver import ENDED, ApiServer, Body
from tests.simulation.efs import TRASH, Copy, Directory, Efs, FileSystem, Parts
from tests.simulation.history import History
from tests.simulation.targets import published
from tests.simulation.themes import Theme
from tests.simulation.virtual import VirtualLoop

from kube_efs.model.copies import COPIES, Copied, CopyProgress
from kube_efs.model.efs.directories import FoundDirectory, parse_directory
from kube_efs.model.errors import (
    CopyDiffers,
    GidTaken,
    KubeEfsError,
    RemovalRefused,
    WorkerFailed,
    WorkerRefused,
)
from kube_efs.model.trash import TrashReport
from kube_efs.provisioning.workers import program
from kube_efs.provisioning.workers.file_system import refuse_outside
from kube_efs.provisioning.workers.orders import (
    Action,
    parse_item,
    path_in,
    render_children,
    render_copied,
    render_report,
    render_trash,
)

_PV_FINALIZER = "kubernetes.io/pv-protection"
_PVC_FINALIZER = "kubernetes.io/pvc-protection"
_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
_GRACE_SECONDS = 5.0


class Binder:
    """Assigns claims to provisioners, binds and releases volumes, and removes finalizers of unused ones."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, server: ApiServer) -> None:
        self._loop = loop
        self._rng = rng
        self._server = server
        self._due: set[tuple[str, str, str]] = set()
        self.slowest = rng.choice((0.2, 0.2, 2.0, 8.0))
        server.observers.append(self._changed)

    def _changed(self, plural: str, old: Body | None, new: Body | None) -> None:
        meta = (new or old or {})["metadata"]
        if plural == "persistentvolumes":
            self._soon("pv", meta["name"])
            claim = (new or old or {})["spec"].get("claimRef") or {}
            if claim:
                self._soon("pvc", claim["name"], claim.get("namespace", ""))
        elif plural == "persistentvolumeclaims":
            self._soon("pvc", meta["name"], meta["namespace"])
            self._see_volumes_of(meta["name"], meta["namespace"])
        elif plural == "storageclasses":
            for claim in self._server.all("persistentvolumeclaims"):
                self._soon("pvc", claim["metadata"]["name"], claim["metadata"]["namespace"])
        elif plural == "pods" and (new is None or new["status"]["phase"] in ENDED):
            for claim in _claims_of(new or old or {}):
                self._soon("pvc", claim, meta["namespace"])
            if new is None:
                self._collect(meta["uid"])

    def _see_volumes_of(self, name: str, namespace: str) -> None:
        for volume in self._server.all("persistentvolumes"):
            claim = volume["spec"].get("claimRef") or {}
            if (claim.get("namespace"), claim.get("name")) == (namespace, name):
                self._soon("pv", volume["metadata"]["name"])

    def _collect(self, owner: str) -> None:
        """Delete the claims that a deleted pod owned, as the garbage collector does."""
        for claim in self._server.all("persistentvolumeclaims"):
            meta = claim["metadata"]
            if any(one["uid"] == owner for one in meta.get("ownerReferences") or ()):
                found = ("persistentvolumeclaims", meta["name"], meta["namespace"])
                self._loop.after(self._rng.uniform(0.01, self.slowest), self._server.delete, *found)

    def _soon(self, kind: str, name: str, namespace: str = "") -> None:
        key = (kind, name, namespace)
        if key not in self._due:
            self._due.add(key)
            self._loop.after(self._rng.uniform(0.01, self.slowest), self._sync, key)

    def _sync(self, key: tuple[str, str, str]) -> None:
        self._due.discard(key)
        kind, name, namespace = key
        if kind == "pv":
            self._sync_volume(name)
        else:
            self._sync_claim(name, namespace)

    def _sync_volume(self, name: str) -> None:
        volume = self._server.find("persistentvolumes", name)
        if volume is None:
            return
        phase = self._phase(volume)
        if phase != volume["status"]["phase"]:
            self._server.update("persistentvolumes", name, lambda body: body["status"].update(phase=phase))
        elif "deletionTimestamp" in volume["metadata"] and phase != "Bound":
            self._remove_finalizer("persistentvolumes", volume, _PV_FINALIZER)

    def _phase(self, volume: Body) -> str:
        reference, phase = volume["spec"].get("claimRef"), volume["status"]["phase"]
        if not reference:
            return "Available"
        claim = self._server.find("persistentvolumeclaims", reference["name"], reference.get("namespace", ""))
        uid, name = reference.get("uid"), volume["metadata"]["name"]
        if claim is None or (uid and uid != claim["metadata"]["uid"]):
            return "Released" if uid else "Available"
        if claim["spec"].get("volumeName") == name:
            if claim["status"]["phase"] != "Bound":
                self._bind(volume, claim)
            return "Bound"
        if not claim["spec"].get("volumeName"):
            # A Terminating volume is no longer bound.
            if "deletionTimestamp" in volume["metadata"]:
                return str(phase)
            self._bind(volume, claim)
            return "Bound"
        annotations = volume["metadata"].get("annotations") or {}
        is_dynamic = "pv.kubernetes.io/provisioned-by" in annotations
        deletes = volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
        return "Released" if is_dynamic and deletes and uid else "Available"

    def _bind(self, volume: Body, claim: Body) -> None:
        name, meta = volume["metadata"]["name"], claim["metadata"]
        if not volume["spec"]["claimRef"].get("uid"):
            self._server.update(
                "persistentvolumes", name, lambda body: body["spec"]["claimRef"].update(uid=meta["uid"])
            )

        def bound(body: Body) -> None:
            body["spec"]["volumeName"] = name
            body["status"]["phase"] = "Bound"

        self._server.update("persistentvolumeclaims", meta["name"], bound, meta["namespace"])

    def _sync_claim(self, name: str, namespace: str) -> None:
        claim = self._server.find("persistentvolumeclaims", name, namespace)
        if claim is None:
            return
        if "deletionTimestamp" in claim["metadata"] and not self._is_used(name, namespace):
            self._remove_finalizer("persistentvolumeclaims", claim, _PVC_FINALIZER)
            return
        wanted = claim["spec"].get("volumeName")
        volume = self._server.find("persistentvolumes", wanted) if wanted else None
        if volume is not None and not volume["spec"].get("claimRef"):
            reference = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": namespace,
                "name": name,
                "uid": claim["metadata"]["uid"],
            }
            self._server.update(
                "persistentvolumes",
                volume["metadata"]["name"],
                lambda body: body["spec"].update(claimRef=reference),
            )
        if not wanted:
            self._assign(claim)

    def _assign(self, claim: Body) -> None:
        """Assign the claim to the provisioner of its class."""
        class_ = self._server.find("storageclasses", claim["spec"]["storageClassName"])
        given = {} if class_ is None else {_PROVISIONER: class_["provisioner"]}
        meta = claim["metadata"]
        if not given.items() <= (meta.get("annotations") or {}).items():
            self._server.update(
                "persistentvolumeclaims",
                meta["name"],
                lambda body: body["metadata"].setdefault("annotations", {}).update(given),
                meta["namespace"],
            )

    def _is_used(self, claim: str, namespace: str) -> bool:
        """Whether a pod on a node uses the claim; a pending pod gets no node while the claim is deleted."""
        return any(
            pod["metadata"]["namespace"] == namespace
            and pod["spec"].get("nodeName")
            and pod["status"]["phase"] not in ENDED
            and claim in _claims_of(pod)
            for pod in self._server.all("pods")
        )

    def _remove_finalizer(self, plural: str, body: Body, finalizer: str) -> None:
        meta = body["metadata"]
        if finalizer in (meta.get("finalizers") or ()):
            self._server.update(
                plural,
                meta["name"],
                lambda new: new["metadata"]["finalizers"].remove(finalizer),
                meta.get("namespace") or "",
            )


def _claims_of(pod: Body) -> list[str]:
    """The names of the claims that a pod mounts."""
    volumes = pod["spec"].get("volumes") or ()
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]


_COPIED = Copied(progress=CopyProgress(), finished=1.0)


class _Container:
    """One run of a worker."""

    def __init__(self, node: "Node", pod: Body) -> None:
        self.node = node
        self.uid: str = pod["metadata"]["uid"]
        self.name: str = pod["metadata"]["name"]
        self.namespace: str = pod["metadata"]["namespace"]
        self.work: Iterator[None] | None = None
        self.hang_rate = 0.0
        self.is_dead = False
        self.result: tuple[int, str] | None = None
        # The file system that it may change or read for long.
        self.uses: str | None = None
        # The source that it copies now.
        self.copying: tuple[str, Parts] | None = None


class Node:
    """A machine: it may lose power, or lose its connection to the API server while its pods continue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.has_power = True
        self.is_reachable = True
        self.boots = 1
        self.containers: dict[str, _Container] = {}

    @property
    def is_well(self) -> bool:
        """Whether its kubelet works."""
        return self.has_power and self.is_reachable


class Nodes:
    """The scheduler and the kubelets, for worker pods only."""

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        server: ApiServer,
        efs: Efs,
        history: History,
        theme: Theme,
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._server = server
        self._efs = efs
        self._history = history
        start, step = rng.choice((0.5, 0.5, 5.0, 50.0)), rng.choice((0.02, 0.2, 2.0))
        hang_rate = rng.choice((0.0, 0.0, 0.0, 0.05))
        self._start_most = theme.start_seconds or start
        self._step_most = theme.step_seconds or step
        self._hang_rate = hang_rate
        self._removals_hang = theme.removals_hang or hang_rate
        self._emptying_hangs = theme.emptying_hangs or hang_rate
        self._copies_hang = theme.copies_hang or hang_rate
        self.is_calm = False
        self.all = [Node("node-a"), Node("node-b")]
        for node in self.all:
            self._register(node)
        server.observers.append(self._changed)
        efs.being_copied = self._being_copied
        efs.mounted_by = self._mounted_by

    def _mounted_by(self, file_system_id: str) -> Iterator[str]:
        for node in self.all:
            for one in node.containers.values():
                is_running = one.result is None and not one.is_dead and self._pod(one.uid) is not None
                if one.uses == file_system_id and is_running:
                    yield one.name

    def _being_copied(self) -> Iterator[tuple[str, Parts]]:
        for node in self.all:
            for one in node.containers.values():
                if one.copying is not None and not one.is_dead and one.result is None:
                    yield one.copying

    def fail(self, node: Node, *, has_power: bool) -> None:
        """The node is lost; with power, its pods continue."""
        self._history.note("{} is lost, {} power", node.name, "with" if has_power else "without")
        node.is_reachable = False
        if not has_power:
            node.has_power = False
            for container in node.containers.values():
                container.is_dead = True
        self._set_ready(node, "Unknown")

    def recover(self, node: Node) -> None:
        """The node returns, with its running pods."""
        self._history.note("{} is back", node.name)
        if not node.has_power:
            node.boots += 1
        node.has_power = node.is_reachable = True
        if self._server.find("nodes", node.name) is None:
            self._register(node)
        self._server.update(
            "nodes", node.name, lambda body: body["status"]["nodeInfo"].update(bootID=f"boot-{node.boots}")
        )
        self._set_ready(node, "True")
        for pod in self._server.all("pods"):
            if pod["spec"].get("nodeName") == node.name:
                self._loop.after(self._rng.uniform(0.1, 1.0), self._sync, node, pod["metadata"]["uid"])

    def remove(self, node: Node) -> None:
        """The machine is permanently lost; later, its Node and its pods are deleted."""
        self._history.note("{} is removed", node.name)
        self._server.remove("nodes", node.name)
        for pod in self._server.all("pods"):
            if pod["spec"].get("nodeName") == node.name:
                self._server.remove("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])

    def _register(self, node: Node) -> None:
        self._server.create(
            "nodes",
            {
                "metadata": {"name": node.name},
                "spec": {},
                "status": {"nodeInfo": _node_info(node), "conditions": [_ready("True")]},
            },
        )

    def _set_ready(self, node: Node, status: str) -> None:
        def change(body: Body) -> None:
            body["status"]["conditions"] = [_ready(status)]

        if self._server.find("nodes", node.name) is not None:
            self._server.update("nodes", node.name, change)

    def _changed(self, plural: str, old: Body | None, new: Body | None) -> None:
        if plural != "pods":
            return
        if new is None:
            self._gone(old or {})
            return
        uid, spec = new["metadata"]["uid"], new["spec"]
        if not spec.get("nodeName"):
            if not spec.get("schedulingGates") and "deletionTimestamp" not in new["metadata"]:
                self._loop.after(self._rng.uniform(0.01, 0.3), self._schedule, new["metadata"], uid)
            return
        node = next((one for one in self.all if one.name == spec["nodeName"]), None)
        is_new = old is None or not old["spec"].get("nodeName")
        is_leaving = (
            "deletionTimestamp" in new["metadata"] and "deletionTimestamp" not in (old or new)["metadata"]
        )
        if node is not None and (is_new or is_leaving):
            most = self._start_most if is_new and not self.is_calm else 0.5
            self._loop.after(self._rng.uniform(0.05, most), self._sync, node, uid)

    def _gone(self, pod: Body) -> None:
        """A kubelet ends containers of deleted pods."""
        for node in self.all:
            container = node.containers.get(pod["metadata"]["uid"])
            if container is not None:
                self._loop.after(self._rng.uniform(0.1, 1.0), self._kill, container)

    def _schedule(self, meta: Body, uid: str) -> None:
        pod = self._server.find("pods", meta["name"], meta["namespace"])
        if (
            pod is None
            or pod["metadata"]["uid"] != uid
            or pod["spec"].get("nodeName")
            or pod["spec"].get("schedulingGates")
            or "deletionTimestamp" in pod["metadata"]
        ):
            return
        ready = [one for one in self.all if one.is_well]
        if not ready or not self._has_its_claims(pod):
            self._loop.after(2.0, self._schedule, meta, uid)
            return
        node = self._rng.choice(ready)
        self._server.update(
            "pods", meta["name"], lambda body: body["spec"].update(nodeName=node.name), meta["namespace"]
        )

    def _has_its_claims(self, pod: Body) -> bool:
        """Whether each claim of the pod is Bound and not deleted, as the scheduler requires."""
        namespace = pod["metadata"]["namespace"]
        claims = [self._server.find("persistentvolumeclaims", one, namespace) for one in _claims_of(pod)]
        return all(
            one is not None
            and one["status"]["phase"] == "Bound"
            and "deletionTimestamp" not in one["metadata"]
            for one in claims
        )

    def _pod(self, uid: str) -> Body | None:
        return next((one for one in self._server.all("pods") if one["metadata"]["uid"] == uid), None)

    def _sync(self, node: Node, uid: str) -> None:
        """The kubelet handles a pod of its node."""
        pod = self._pod(uid)
        if pod is None or not node.is_well:
            return
        container = node.containers.get(uid)
        if "deletionTimestamp" in pod["metadata"]:
            if container is None or container.is_dead or container.result is not None:
                self._loop.after(self._rng.uniform(0.05, 0.5), self._clear_away, node, uid)
            else:
                self._loop.after(self._rng.uniform(0.0, _GRACE_SECONDS), self._kill, container)
        elif container is None and pod["status"]["phase"] == "Pending":
            self._start(node, pod)
        elif container is not None and container.is_dead and container.result is None:
            container.result = (137, "")
            self._report(container)
        elif container is not None and container.result is not None:
            self._report(container)

    def _clear_away(self, node: Node, uid: str) -> None:
        pod = self._pod(uid)
        if pod is not None and node.is_well:
            container = node.containers.get(uid)
            code, message = (container.result if container else None) or (137, "")
            self._set_status(pod, code, message)
            self._server.remove("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])

    def _start(self, node: Node, pod: Body) -> None:
        file_system = self._mounted(pod)
        if file_system is None:
            self._loop.after(2.0, self._sync, node, pod["metadata"]["uid"])
            return
        container = node.containers[pod["metadata"]["uid"]] = _Container(node, pod)
        arguments = [one.replace("$$", "$") for one in pod["spec"]["containers"][0]["args"]]
        container.uses = None if Action.LIST in arguments else file_system.file_system_id
        rates = {
            Action.REMOVE: self._removals_hang,
            Action.EMPTY: self._emptying_hangs,
            Action.COPY: self._copies_hang,
        }
        container.hang_rate = rates.get(Action(arguments[1]), self._hang_rate)
        container.work = self._work(container, file_system, arguments)
        self._history.note(
            "{} starts in {}: {}", container.name, file_system.file_system_id, " ".join(arguments[1:])
        )
        self._server.update(
            "pods",
            container.name,
            lambda body: body.update(status=_status("Running", {"running": {}})),
            container.namespace,
        )
        if container.uses:
            self._efs.mount(container.uses, container.name)
        deadline = float(pod["spec"].get("activeDeadlineSeconds") or 600)
        self._loop.after(deadline, self._expire, container)
        self._go_on(container)

    def _mounted(self, pod: Body) -> FileSystem | None:
        """The file system of the pod's claim, by the current ports; None before it is known."""
        claims = [
            one["persistentVolumeClaim"]["claimName"]
            for one in pod["spec"]["volumes"]
            if "persistentVolumeClaim" in one
        ]
        claim = self._server.find("persistentvolumeclaims", claims[0], pod["metadata"]["namespace"])
        if claim is None or claim["status"]["phase"] != "Bound":
            return None
        volume = self._server.find("persistentvolumes", claim["spec"]["volumeName"])
        if volume is None:
            return None
        if handle := (volume["spec"].get("csi") or {}).get("volumeHandle"):
            return self._efs.file_systems[handle.split(":")[1]]
        port = next(
            int(option.removeprefix("port="))
            for option in volume["spec"]["mountOptions"]
            if option.startswith("port=")
        )
        ports = published(self._server, pod["metadata"]["namespace"])
        return self._efs.file_systems.get(ports.get(port, ""))

    def _go_on(self, container: _Container) -> None:
        if container.is_dead or container.work is None:
            return
        try:
            next(container.work)
        except StopIteration as done:
            container.result = done.value
            self._loop.after(self._rng.uniform(0.01, 0.3), self._report, container)
            return
        if not self.is_calm and self._rng.random() < container.hang_rate:
            pause = self._rng.uniform(5.0, 60.0)
            self._history.note("{} hangs for {:.1f} s", container.name, pause)
        else:
            pause = self._rng.uniform(0.0, self._step_most)
        self._loop.after(pause, self._go_on, container)

    def _expire(self, container: _Container) -> None:
        if not container.is_dead and container.result is None:
            self._kill(container)

    def _kill(self, container: _Container) -> None:
        if container.result is None and not container.is_dead:
            container.is_dead = True
            container.result = (137, "")
            self._history.note("{} is killed", container.name)
        if container.node.is_well:
            self._report(container)

    def _report(self, container: _Container) -> None:
        """Report the end to the API server, and remove the pod if it is deleted."""
        pod = self._pod(container.uid)
        if pod is None or container.result is None or not container.node.is_well:
            return
        self._set_status(pod, *container.result)
        if "deletionTimestamp" in pod["metadata"]:
            self._loop.after(self._rng.uniform(0.05, 0.5), self._clear_away, container.node, container.uid)

    def _set_status(self, pod: Body, code: int, message: str) -> None:
        if pod["status"]["phase"] in ENDED:
            return
        phase = "Failed" if code else "Succeeded"
        terminated = {"exitCode": code, "message": message, "reason": "Error" if code else "Completed"}
        self._history.note("{} has ended: {} {}", pod["metadata"]["name"], phase, message)
        self._server.update(
            "pods",
            pod["metadata"]["name"],
            lambda body: body.update(status=_status(phase, {"terminated": terminated})),
            pod["metadata"]["namespace"],
        )

    # --- what runs in the pods, in the order of the real worker (workers.program and file_system)

    def _work(
        self, container: _Container, file_system: FileSystem, arguments: list[str]
    ) -> "Generator[None, None, tuple[int, str]]":
        options = program._parser().parse_args(arguments[1:])
        failed: dict[str, str] = {}
        refused: set[str] = set()
        taken: set[str] = set()
        log = self._server.logs.setdefault(container.name, [])
        for item in options.items:
            yield
            try:
                match options.action:
                    case Action.MAKE:
                        yield from self._make(file_system, options, item, container.name)
                    case Action.REMOVE:
                        self._remove(file_system, options, item, container.name)
                    case Action.LIST:
                        log.extend(render_children(_children(file_system, item)))
                    case Action.COPY:
                        copied = yield from self._copy(container, file_system, options, item)
                        return 0, render_copied(copied)
                    case Action.EMPTY:
                        report = yield from self._empty(file_system, options)
                        log.append(render_trash(report))
            except (KubeEfsError, OSError) as error:
                failed[path_in(item)] = str(error)
                if isinstance(error, (RemovalRefused, WorkerRefused)):
                    refused.add(path_in(item))
                if isinstance(error, (GidTaken, CopyDiffers)):
                    taken.add(path_in(item))
        return (1 if failed else 0, render_report(failed, refused, taken))

    def _make(self, file_system: FileSystem, options: Any, item: str, why: str) -> Iterator[None]:
        wanted = parse_item(item)
        *above, name = wanted.directory.parts
        if file_system.find((*above, name)) is None and file_system.is_full:
            raise OSError("No space left on device")
        parent = file_system.make(tuple(above))
        yield
        is_new = name not in parent.children
        folder = parent.children.setdefault(name, Directory())
        if is_new:
            folder.made_by = why
            self._history.note("{}:{} is made", file_system.file_system_id, wanted.directory)
        yield
        if not (is_new or options.enforce):
            return
        if options.own_group and wanted.gid is not None:
            places = [(parent, (name,)), (file_system.root, (*above, name))][: 2 if above else 1]
            try:
                yield from _claim_group(wanted.gid, places, has_group=folder.gid == wanted.gid)
            except GidTaken:
                if is_new and parent.children.get(name) is folder and not folder.is_used:
                    del parent.children[name]
                raise
        folder.gid = folder.gid if wanted.gid is None else wanted.gid
        folder.uid = folder.uid if wanted.uid is None else wanted.uid

    def _copy(
        self, container: _Container, file_system: FileSystem, options: Any, item: str
    ) -> "Generator[None, None, Copied]":
        """Copy into a directory of its own, and rename it, as ``copying``."""
        *above, name = parse_item(item).directory.parts
        source = options.source.parts
        made = file_system.find((*above, name))
        copy = file_system.copies.setdefault(options.key, Copy(source))
        if copy.finished is not None and copy.finished is made:
            if copy.source != source:
                raise CopyDiffers("is the name of a copy of another directory", field="copy")
            return _COPIED
        copy.has_part = copy.has_part and copy.source == source
        copy.source = source
        found = file_system.find(source)
        if found is None and (copy.has_part or not options.source_may_be_missing):
            raise WorkerRefused("does not exist", field="source", value=str(options.source))
        container.copying = (file_system.file_system_id, source)
        # A missing source counts as an empty one, so this is where its removal loses data.
        tree = Directory(copied={}, lacks_data=found is None and source in file_system.removed)
        for _ in range(self._rng.randrange(1, 6)):
            yield
            if found is not None:
                tree.copied = {**(found.copied or {}), **found.written}
                copy.has_part = found.is_used
        made = file_system.find((*above, name))
        if made is None and options.map_owner:
            raise WorkerFailed("does not exist any more", field="directory", value=item)
        if made is not None:
            tree.made_by, tree.uid, tree.gid = made.made_by, made.uid, made.gid
        copy.finished = tree
        yield
        made = file_system.find((*above, name))
        if made is not None and made.is_used:
            raise WorkerRefused("exists and is not empty", field="directory", value=item)
        file_system.make(tuple(above)).children[name] = tree
        self._history.note("{}:{} is a copy of {}", file_system.file_system_id, item, options.source)
        container.copying = None
        return _COPIED

    def _remove(self, file_system: FileSystem, options: Any, item: str, why: str) -> None:
        wanted = parse_item(item)
        refuse_outside(wanted.directory, options.base)
        if wanted.directory.parts[0] == COPIES:
            file_system.copies.pop(wanted.directory.parts[1], None)
            return
        entry = f"{wanted.tenant}.{self._rng.getrandbits(64):016x}"
        if self._efs.move_to_trash(file_system, wanted.directory.parts, entry, why):
            self._history.note(
                "{}:{} goes to the trash by {}", file_system.file_system_id, wanted.directory, why
            )

    def _empty(self, file_system: FileSystem, options: Any) -> "Generator[None, None, TrashReport]":
        deadline, removed = self._loop.time() + options.total_seconds, 0
        while file_system.trash and self._loop.time() < deadline:
            yield
            # Another pod may work at the same time.
            for entry in list(file_system.trash)[:1]:
                removed += sum(1 for _ in file_system.trash.pop(entry).below())
        return TrashReport(entries=len(file_system.trash), removed=removed)


def _claim_group(gid: int, places: Sequence[tuple[Directory, Parts]], *, has_group: bool) -> Iterator[None]:
    """Mark the group ID, then read the other marks (as ``gid_marks.claim``); raises GidTaken."""
    was_marked = []
    for folder, path in places:
        marks = folder.marks.setdefault(gid, set())
        was_marked.append(path in marks)
        marks.add(path)
        yield
    if has_group and all(was_marked):
        return
    others = []
    for folder, path in places:
        others.append((yield from _other_owner(gid, folder, path)))
    if any(others):
        for folder, path in places:
            folder.marks[gid].discard(path)
        raise GidTaken(f"belongs to {others}", field="group ID", value=gid, remedy="another ID is tried")


def _other_owner(gid: int, folder: Directory, path: Parts) -> "Generator[None, None, str]":
    """Another directory with the ID; removes the marks of directories that do not exist."""
    marks = folder.marks[gid]
    seen = sorted(marks)
    if path not in seen:
        return "a directory that was created at the same time"
    for other in seen:
        if other == path or other not in marks:
            continue
        yield
        if folder.find(other) is not None:
            return "/".join(other)
        yield
        marks.discard(other)
    return ""


def _children(file_system: FileSystem, item: str) -> list[FoundDirectory]:
    folder = file_system.find(parse_directory(item).parts)
    return [
        FoundDirectory(name=name, gid=child.gid)
        for name, child in sorted(folder.children.items() if folder else ())
        if name != TRASH
    ]


def _node_info(node: Node) -> Body:
    texts = (
        "architecture",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    )
    return {**dict.fromkeys(texts, ""), "bootID": f"boot-{node.boots}"}


def _ready(status: str) -> Body:
    return {"type": "Ready", "status": status}


def _status(phase: str, state: Body) -> Body:
    status = {
        "name": "worker",
        "image": "",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }
    return {"phase": phase, "containerStatuses": [status]}
