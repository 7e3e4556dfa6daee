"""One run: a cluster from a seed, users and faults for some minutes, quiet time, and the final checks."""

import asyncio
import datetime as real_datetime
import gc
import logging
import random
import secrets
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import structlog
from tests.simulation.apiserver import BEGIN, ApiServer, Body
from tests.simulation.cluster import Binder, Nodes
from tests.simulation.containers import Container, World
from tests.simulation.csi_provisioner import CsiProvisioner
from tests.simulation.efs import Efs, Parts, directories, root_of
from tests.simulation.history import History, Violation
from tests.simulation.invariants import Invariants, Record, is_in, was_removed
from tests.simulation.replica import BUCKET, FIRST, NAMESPACE, SECOND, THIRD, Replica, settings_for
from tests.simulation.request_faults import RequestFaults
from tests.simulation.targets import published
from tests.simulation.themes import theme_of
from tests.simulation.users import CLASSES, Users, gid_range
from tests.simulation.virtual import State, Stuck, VirtualLoop, clock_offset, current_process

from kube_efs.aws.connection import AwsConnection
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.provisioning.workers.orders import Action
from kube_efs.settings.directories import BackendName, WorkerMounts

_ACTIVE_SECONDS = 240.0
# Longer than volumes are kept for the calls of an earlier leader.
_PAUSE_SECONDS = (200.0, 300.0)
_SETTLING_SECONDS = 1500.0
# After this time, the controller knows all file systems again, and has reported unknown volumes.
_ADVICE_SECONDS = 150.0
# Methods of the simulation for faults other than those of requests.
_TROUBLES = (
    "kill",
    "kill",
    "kill_leader",
    "stop_leader",
    "pause_leader",
    "pause_leader",
    "cut_watches",
    "expire_watches",
    "lose_node",
    "delete_config_map",
    "list_nothing",
    "toggle_file_system",
    "fill_file_system",
    "delete_pods",
    "step_clock",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run; ``violation`` is None if all invariants were true."""

    seed: int
    violation: str | None
    history: list[str]
    seconds: float


class Simulation:
    """The cluster of one seed."""

    def __init__(self, seed: int) -> None:
        rng, theme = random.Random(seed), theme_of(seed)
        self._rng = random.Random(rng.getrandbits(64))
        self.loop = VirtualLoop()
        self.history = History(self.loop.time)
        self.server = ApiServer(self.loop, self.history, page_most=rng.choice((3, 500)))
        self.efs = Efs()
        for one in (FIRST, SECOND, THIRD):
            self.efs.add(one)
        self.efs.file_systems[THIRD].listed = rng.random() < 0.5
        if theme.has_bucket:
            self.efs.add(BUCKET, FileSystemKind.S3_FILES)
            self.efs.allows_get = rng.random() < 0.5
        self.request_faults = RequestFaults(random.Random(rng.getrandbits(64)), theme.targets, theme.lag)
        self.invariants = Invariants(
            self.server, self.efs, self.history, self.loop.time, has_socket=theme.has_socket
        )
        self.binder = Binder(self.loop, random.Random(rng.getrandbits(64)), self.server)
        self.binder.slowest = theme.binder_seconds or self.binder.slowest
        self.nodes = Nodes(
            self.loop, random.Random(rng.getrandbits(64)), self.server, self.efs, self.history, theme
        )
        backends: tuple[BackendName, ...] = rng.choice(
            (
                (BackendName.TUNNEL, BackendName.DIRECTORY, BackendName.CSI),
                (BackendName.TUNNEL, BackendName.DIRECTORY, BackendName.CSI),
                (BackendName.TUNNEL, BackendName.CSI),
                (BackendName.TUNNEL,),
                (BackendName.TUNNEL, BackendName.DIRECTORY),
            )
        )
        backends = theme.backends or backends
        self.users = Users(
            self.loop,
            random.Random(rng.getrandbits(64)),
            self.server,
            self.efs,
            self.invariants,
            self.history,
            backends=frozenset(map(str, backends)),
            theme=theme,
        )
        quota = rng.choice((2, 100, 100))
        quota = theme.quota or quota
        settings = settings_for(
            backends,
            removes_roots=rng.random() < (1.0 if theme.has_bucket else 0.8),
            quota=quota,
            has_socket=theme.has_socket,
            worker_mounts=WorkerMounts.CSI if theme.has_bucket else WorkerMounts.TUNNEL,
        )
        world = World(
            loop=self.loop,
            server=self.server,
            efs=self.efs,
            request_faults=self.request_faults,
            history=self.history,
            invariants=self.invariants,
        )
        aws_quota = max(rng.choice((quota, quota, 1)), 2)
        self._quota = quota
        self._access_points_most = min(quota, aws_quota)
        replicas, trouble_seconds = rng.choice((1, 2, 2, 3)), rng.choice((0.0, 5.0, 20.0, 60.0))
        self.replicas = [
            Replica(world, f"replica-{number}", settings, quota=aws_quota)
            for number in range(theme.replicas or replicas)
        ]
        self.sidecars = [
            CsiProvisioner(world, one, random.Random(rng.getrandbits(64)))
            for one in self.replicas
            if theme.has_socket
        ]
        self._trouble = theme.trouble_seconds or trouble_seconds
        self._troubles: list[Callable[[], object]] = [
            getattr(self, f"_{one}") for one in theme.trouble or _TROUBLES
        ]
        self._active_seconds = theme.active_seconds or _ACTIVE_SECONDS
        self._is_calm = self._pauses_at_read = False
        self.server.readers.append(self._looked)
        for name in ("kube-system", "red", "blue"):
            self.server.create("namespaces", {"metadata": {"name": name}})
        self.history.note(
            "theme {}, backends {}, quota {}, {}", theme.name, backends, quota, self.request_faults
        )

    def run(self) -> None:
        """Run it; raises Violation."""
        self.loop.run_until_complete(self._live())

    async def _live(self) -> None:
        containers: list[Container] = [*self.replicas, *self.sidecars]
        for container in containers:
            self.loop.after(self._rng.uniform(0.0, 2.0), container.start)
        self.users.begin()
        if self._trouble:
            self.loop.after(self._rng.expovariate(1 / self._trouble), self._make_trouble)
        while self.loop.time() < self._active_seconds:
            await self._look()
        self._calm_down()
        reasons = self._unsettled()
        while reasons and self.loop.time() < self._active_seconds + _SETTLING_SECONDS:
            await self._look()
            reasons = self._unsettled()
        self.invariants.check_data()
        if self.invariants.violation:
            raise self.invariants.violation
        if reasons:
            raise Violation("not settled: " + "; ".join(reasons))

    async def _look(self) -> None:
        await asyncio.sleep(1.0)
        if self.invariants.violation:
            raise self.invariants.violation

    # --- faults

    def _make_trouble(self) -> None:
        if self._is_calm:
            return
        self._rng.choice(self._troubles)()
        self.loop.after(self._rng.expovariate(1 / self._trouble), self._make_trouble)

    def _kill(self) -> None:
        self._kill_one(self._rng.choice(self.replicas))

    def _kill_leader(self) -> None:
        for replica in self.replicas:
            if replica.is_leading:
                self._kill_one(replica)

    def _stop_leader(self) -> None:
        for replica in self.replicas:
            if replica.is_leading:
                replica.stop()

    def _kill_sidecar(self) -> None:
        self._kill_one(self._rng.choice(self.sidecars))

    def _kill_one(self, container: Container) -> None:
        if container.process.state is not State.DEAD:
            container.kill()
            self.loop.after(self._rng.choice((0.1, 2.0, 20.0)), container.start)

    def _pause_leader(self) -> None:
        for replica in self.replicas:
            if replica.is_leading:
                seconds = self._rng.choice((1.0, 12.0, 20.0, 40.0))
                process = replica.process
                self.history.note("{} stands still for {:g} s", process.name, seconds)
                process.pause()
                self.loop.after(seconds, process.resume, self.loop)

    def _step_clock(self) -> None:
        seconds = self._rng.choice((-86_400.0, -300.0, -20.0, 20.0, 300.0, 86_400.0))
        self._rng.choice(self.replicas).step_clock(seconds)

    def _pause_at_read(self) -> None:
        """Pause the next leader when it gets the answer about a volume that it removes."""
        self._pauses_at_read = all(one.process.state is not State.PAUSED for one in self.replicas)

    def _looked(self, plural: str, name: str) -> None:
        if self._is_calm or not self._pauses_at_read or plural != "persistentvolumes":
            return
        # If the pod is still gated, the next leader deletes it, and the order with it.
        if any(pod["spec"].get("schedulingGates") for pod in self.server.all("pods")):
            return
        author = self.server.author
        leader = next((one for one in self.replicas if one.is_leading and one.process.name == author), None)
        record = next((one for one in self.invariants.live() if one.name == name), None)
        is_going = record is not None and record.committed is not None and record.is_to_go
        # The volume is also read when its removal begins.
        if leader and record and is_going and record.access_point_id and self._rng.random() < 0.5:
            self._pauses_at_read = False
            self._stop(leader, record)

    def _stop(self, replica: Replica, record: Record) -> None:
        """Pause the leader until the volume may be deleted; meanwhile users set it to Retain."""
        seconds, process = self._rng.uniform(*_PAUSE_SECONDS), replica.process
        self.history.note("{} stands still for {:g} s", process.name, seconds)
        process.pause()
        self.loop.after(seconds, process.resume, self.loop)
        self.loop.after(self._rng.uniform(1.0, 10.0), self.users.keep, record)

    def _cut_watches(self) -> None:
        self.history.note("watches break")
        self.server.cut_watches(lambda: self._rng.random() < 0.5)

    def _expire_watches(self) -> None:
        self.history.note("watches expire")
        self.server.forget_events()
        self.server.cut_watches(lambda: self._rng.random() < 0.5)

    def _lose_node(self) -> None:
        node = self._rng.choice(self.nodes.all)
        if node.is_well:
            self.nodes.fail(node, has_power=self._rng.random() < 0.5)
            self.loop.after(self._rng.choice((10.0, 60.0)), self._recover, node)

    def _recover(self, node: object) -> None:
        for one in self.nodes.all:
            if one is node and not one.is_well:
                self.nodes.recover(one)

    def _delete_pods(self) -> None:
        for pod in self.server.all("pods"):
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                self.history.note("people delete pod {}", pod["metadata"]["name"])
                self.server.delete("pods", pod["metadata"]["name"], NAMESPACE)

    def _cut_off(self) -> None:
        """A node that removes a directory is disconnected but continues; users delete its pods."""
        for pod in self.server.all("pods"):
            for node in self.nodes.all:
                is_on = pod["spec"].get("nodeName") == node.name and pod["status"]["phase"] == "Running"
                removes = Action.REMOVE in pod["spec"]["containers"][0]["args"]
                if is_on and removes and all(one.is_well for one in self.nodes.all):
                    self.nodes.fail(node, has_power=True)
                    self._delete_pods()
                    self.loop.after(60.0, self._recover, node)

    def _delete_config_map(self) -> None:
        if self.server.find("configmaps", "efs-stunnel", NAMESPACE):
            self.history.note("people delete the ConfigMap")
            self.server.delete("configmaps", "efs-stunnel", NAMESPACE)

    def _list_nothing(self) -> None:
        for replica in self.replicas:
            replica.lists_nothing = 1

    def _toggle_file_system(self) -> None:
        one = self.efs.file_systems[self._rng.choice((SECOND, THIRD))]
        one.listed, one.since = not one.listed, self.loop.time()
        self.history.note("{} is {}", one.file_system_id, "there" if one.listed else "away")

    def _fill_file_system(self) -> None:
        one = self._rng.choice(list(self.efs.file_systems.values()))
        one.is_full = not one.is_full
        self.history.note("{} is {}", one.file_system_id, "full" if one.is_full else "no longer full")

    def _use_up_access_points(self) -> None:
        """Others create access points until the first file system is full."""
        others = {"FileSystemId": FIRST, "RootDirectory": {"Path": "/others"}, "Tags": []}
        while sum(one["FileSystemId"] == FIRST for one in self.efs.access_points.values()) < self._quota:
            token = f"others-{len(self.efs.access_points)}"
            self.efs.add_access_point("", self.loop.time(), ClientToken=token, **others)

    # --- the end

    def _calm_down(self) -> None:
        self.history.note("peace")
        self._is_calm = self.nodes.is_calm = True
        self.request_faults.clear()
        self.users.leave()
        self.loop.after(_ADVICE_SECONDS, self.users.annotate_unknown)
        for one in self.efs.file_systems.values():
            one.is_full = False
            if not one.listed and not one.is_deleted:
                one.listed, one.since = True, self.loop.time()
        for node in self.nodes.all:
            if not node.is_well:
                self.nodes.recover(node)
        for replica in self.replicas:
            replica.process.resume(self.loop)
            self.loop.after(1.0, replica.start)
        for sidecar in self.sidecars:
            self.loop.after(1.0, sidecar.start)

    def _unsettled(self) -> list[str]:
        """The remaining work and leftovers."""
        return [*self._unserved(), *self._unremoved(), *self._left_behind()]

    def _unserved(self) -> list[str]:
        found = []
        for claim in self.server.all("persistentvolumeclaims"):
            meta, phase = claim["metadata"], claim["status"]["phase"]
            if (
                claim["spec"]["storageClassName"] in CLASSES
                and phase != "Bound"
                and not self._is_short(claim)
                and not self._waits_for_users(claim)
                and not self._waits_for_source(claim)
            ):
                found.append(f"claim {meta['namespace']}/{meta['name']} is {phase}")
        return found

    def _waits_for_users(self, claim: dict[str, Any]) -> bool:
        """Whether its access point must be removed with an earlier volume that is blocked.

        Such as one that people have deleted, whose claim they keep.
        """
        _, parameters = CLASSES[claim["spec"]["storageClassName"]]
        return parameters.get("reuseAccessPoint") == "true" and any(
            one.access_point_id is not None
            and ((one.is_to_go and self._is_hindered(one)) or _is_deleted_while_bound(one))
            and one.body["spec"]["claimRef"]["name"] == claim["metadata"]["name"]
            for one in self.invariants.live()
        )

    def _waits_for_source(self, claim: dict[str, Any]) -> bool:
        """Whether its data cannot be copied.

        The claim with the data is gone, on another file system, or has an identity that the class does not
        enforce; or an earlier volume of the same directory was kept with its data.
        """
        if "dataSource" not in claim["spec"]:
            return False
        name, namespace = claim["spec"]["dataSource"]["name"], claim["metadata"]["namespace"]
        labels = (claim["spec"].get("selector") or {}).get("matchLabels") or {}
        kept = self.efs.file_systems[FIRST].find((namespace, labels.get("volume_name", "")))
        if labels and kept is not None and kept.is_used:
            return True
        source = self.server.find("persistentvolumeclaims", name, namespace)
        if source is None or source["status"]["phase"] != "Bound":
            return True
        record = next(
            (one for one in self.invariants.live() if one.claim_uid == source["metadata"]["uid"]), None
        )
        place = self.invariants.located(record) if record is not None else None
        if record is None or place is None or place[0] != FIRST:
            return True
        _, parameters = CLASSES[claim["spec"]["storageClassName"]]
        return record.access_point_id is not None and parameters.get("provisioningMode") != "efs-ap"

    def _is_short(self, claim: dict[str, Any]) -> bool:
        """Whether no group ID is free, or no file system has room for an access point."""
        provisioner, parameters = CLASSES[claim["spec"]["storageClassName"]]
        first, last = gid_range(provisioner, parameters)
        # A claim that waits for its source may hold an ID, because its directory was perhaps created.
        held = sum(one is not claim and self._waits_for_source(one) for one in self._pending_copies())
        if first and len(set(range(first, last + 1)) - self._gids()) <= held:
            return True
        on = Counter(one["FileSystemId"] for one in self.efs.access_points.values())
        if parameters.get("scope") == "namespace":
            made = (name for name, one in self.efs.file_systems.items() if one.made_by)
            return any(on[one] >= self._access_points_most for one in made)
        if parameters.get("provisioningMode") not in {"efs-ap", "s3files-ap"}:
            return False
        candidates = (parameters.get("fileSystemIds") or parameters["fileSystemId"]).split(",")
        return all(on[one] >= self._access_points_most for one in candidates)

    def _gids(self) -> set[int]:
        """Every ID of a volume, an access point or a directory."""
        found = {self.invariants.gid_of(one) or 0 for one in self.invariants.live()}
        for one in self.efs.access_points.values():
            user = one.get("PosixUser") or {}
            found |= {user.get("Gid", 0), user.get("Uid", 0)}
        places = {self.invariants.located(one) for one in self.invariants.live()}
        for file_system in self.efs.file_systems.values():
            # The ID of a volume without a directory, such as one that was set to Retain too late.
            found |= {
                gid
                for gid, paths in file_system.root.marks.items()
                if any((file_system.file_system_id, path) in places for path in paths)
            }
            for folder in file_system.root.below():
                found.add(folder.gid)
                # A marked ID belongs to its directory, even if the creation was interrupted.
                found |= {gid for gid, paths in folder.marks.items() if any(map(folder.find, paths))}
        return found

    def _unremoved(self) -> list[str]:
        """Volumes that should have been removed, because nothing blocks their removal."""
        return [
            f"volume {one.name} is still there"
            for one in self.invariants.live()
            if not one.by_users and one.is_to_go and not self._is_hindered(one)
        ]

    def _is_hindered(self, record: Record) -> bool:
        """Whether another volume is in its directory, or uses its access point."""
        here = record.root
        places = [self.invariants.located(one) for one in self.invariants.live() if one is not record]
        places += [
            (one["FileSystemId"], root_of(one))
            for one in self.efs.access_points.values()
            if one["AccessPointId"] != record.access_point_id
        ]
        if record.place and self.efs.file_systems[record.place[0]].made_by:
            # Its file system is removed with it, or with the last volume of the namespace.
            others = [one for one in self.invariants.live() if one is not record]
            known = {one.access_point_id for one in (record, *others) if not one.by_users}
            points = [one for one in self.efs.access_points.values() if one["AccessPointId"] not in known]
            used = {one["FileSystemId"] for one in points}
            used |= {one.place[0] for one in others if one.place and one.by_users}
            if record.place[0] in used:
                return True
        shares = record.access_point_id is not None and any(
            one.access_point_id == record.access_point_id
            for one in self.invariants.live()
            if one is not record
        )
        return shares or here is None or any(is_in(place, here) for place in places)

    def _left_behind(self) -> list[str]:
        found = [
            f"worker pod {pod['metadata']['name']} is still there"
            for pod in self.server.all("pods")
            if pod["status"]["phase"] != "Failed"
        ]
        found += [
            f"the trash of {one.file_system_id} has {sorted(one.trash)}"
            for one in self.efs.file_systems.values()
            # A volume was kept after the mount targets of its file system were deleted. Until people create
            # others, no worker pod can mount it.
            if one.trash and (not one.made_by or self.efs.has_targets(one.file_system_id))
        ]
        ports = published(self.server, NAMESPACE).values()
        there = {
            name
            for name, one in self.efs.file_systems.items()
            if not one.is_deleted and one.kind is FileSystemKind.EFS
        }
        found += [f"{one} has no port" for one in there - {*ports}]
        found += [f"file system {one} has no volume" for one in self._lonely_file_systems()]
        found += [f"access point {one} has no volume" for one in self._lonely_access_points()]
        return found + [f"directory {one} has no volume" for one in self._lonely_directories()]

    def _was_lost(self, maker: str) -> bool:
        """Whether the only process that knew it has ended, after its claim was deleted."""
        return all(maker != replica.process.name for replica in self.replicas) or any(
            sidecar.lives > 1 for sidecar in self.sidecars
        )

    def _lonely_access_points(self) -> list[str]:
        """Access points of kube-efs that no volume uses.

        There are three exceptions. One was created for a process that has ended since, and the claim was
        deleted before the next leader listed it, or the volume before AWS created it. Another was created by
        a late copy of a request that had been answered long before. The third is of a claim that waits for
        its source.
        """
        waiting = tuple(one["metadata"]["uid"] for one in self._pending_copies())
        used = {one.access_point_id for one in self.invariants.live()}
        kept = {one.access_point_id for one in self.invariants.records.values() if not was_removed(one)}
        return [
            name
            for name, one in self.efs.access_points.items()
            if one["made_by"]
            and name not in used | kept | self.efs.strays
            and not one["ClientToken"].endswith(waiting)
            and not self._was_lost(one["made_by"])
        ]

    def _pending_copies(self) -> list[Body]:
        """The claims that wait for their copy; a source may be gone after a part of the work."""
        return [
            one
            for one in self.server.all("persistentvolumeclaims")
            if one["status"]["phase"] == "Pending" and "dataSource" in one["spec"]
        ]

    def _lonely_file_systems(self) -> list[str]:
        """File systems that were created for claims, and that no volume uses.

        The exceptions are those of access points; one that was never ready is none.
        """
        used = {one.place[0] for one in self.invariants.live() if one.place}
        kept = {
            one.place[0] for one in self.invariants.records.values() if one.place and not was_removed(one)
        }
        account = self.efs.account
        stages = {name: account.stage(name) for name in account.file_systems}
        claims = self.server.all("persistentvolumeclaims")
        pending = [one["metadata"] for one in claims if one["status"]["phase"] == "Pending"]
        waiting = {f"pvc-{one['uid']}" for one in pending}
        for namespace in self.server.all("namespaces"):
            if any(one["namespace"] == namespace["metadata"]["name"] for one in pending):
                waiting.add(namespace["metadata"]["uid"])
        return [
            name
            for name, one in self.efs.file_systems.items()
            if one.made_by
            and not one.is_deleted
            and name not in used | kept
            and account.owner(name) not in waiting
            and not (stages.get(name) == "ready" and self._was_lost(one.made_by))
        ]

    def _lonely_directories(self) -> list[str]:
        """Directories of volumes that were all deleted, and none of them retained.

        The exceptions are the same. Others are the root of an access point that is itself left behind, and
        the directory of a claim that waits for its source.
        """
        found = []
        waiting = self._pending_copies()
        roots = [(one["FileSystemId"], root_of(one)) for one in self.efs.access_points.values()]
        for file_system in self.efs.file_systems.values():
            for parts, folder in directories(file_system):
                here = (file_system.file_system_id, parts)
                users = [
                    one
                    for one in self.invariants.records.values()
                    if is_in(one.root, here) or is_in(here, one.root)
                ]
                if (
                    folder.made_by
                    and not folder.children
                    and not any(is_in(root, here) or is_in(here, root) for root in roots)
                    and all(was_removed(one) and one.access_point_id is None for one in users)
                    and not any(_is_for(claim, parts) for claim in waiting)
                    and not self._was_lost(self.invariants.author_of(folder.made_by))
                ):
                    found.append(f"{file_system.file_system_id}:/{'/'.join(parts)}")
        return found


def _is_deleted_while_bound(record: Record) -> bool:
    """Whether the volume stays Terminating until its claim is deleted."""
    body = record.body
    return "deletionTimestamp" in body["metadata"] and body["status"]["phase"] == "Bound"


def _is_for(claim: Body, parts: Parts) -> bool:
    """Whether the volume of the claim has this directory."""
    labels = (claim["spec"].get("selector") or {}).get("matchLabels") or {}
    if "volume_name" in labels:
        return parts == (claim["metadata"]["namespace"], labels["volume_name"])
    return bool(parts) and parts[-1].endswith(f"pvc-{claim['metadata']['uid']}")


def run(seed: int, *, with_logs: bool = False) -> Outcome:
    """Run that seed; the history contains the logs of the product on request."""
    started = time.perf_counter()
    # Garbage collection would end objects at moments that do not depend on the seed.
    gc.collect()
    gc.freeze()
    gc.disable()
    # Warnings about the tasks of killed processes are expected.
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore", RuntimeWarning)
    random.seed(seed)
    simulation = Simulation(seed)
    _configure_logs(simulation, with_logs=with_logs)
    try:
        with Seeded(simulation.loop, seed):
            simulation.run()
        violation = None
    except (Violation, Stuck) as error:
        violation = str(error)
    history = simulation.history.lines() if violation or with_logs else []
    for replica in simulation.replicas:
        replica.process.kill()
    for sidecar in simulation.sidecars:
        sidecar.process.kill()
    return Outcome(seed, violation, history, time.perf_counter() - started)


def _configure_logs(simulation: Simulation, *, with_logs: bool) -> None:
    """Write the logs of the product to the history on request."""

    def note(_: object, level: str, event: MutableMapping[str, Any]) -> str:
        if with_logs and level != "debug":
            text = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            simulation.history.note("    {}: {} {}", current_process(), event["event"], text)
        raise structlog.DropEvent

    level = logging.INFO if with_logs else logging.ERROR
    structlog.configure(processors=[note], wrapper_class=structlog.make_filtering_bound_logger(level))


class _NoOtherAccounts(AbstractAsyncContextManager[None]):
    """Replaces the calls to other accounts, which the simulation never makes and are slow to prepare."""

    def __init__(self, *_: object) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


class Seeded:
    """Replaces the clocks of the product with the loop's, and its randomness with the seed's."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self._rng = random.Random(f"product {seed}")
        self._loop = loop

    def __enter__(self) -> None:
        loop = self._loop

        class Datetime(real_datetime.datetime):
            @classmethod
            def now(cls, tz: real_datetime.tzinfo | None = None) -> Any:
                return BEGIN + real_datetime.timedelta(seconds=loop.time() + clock_offset())

        clock = SimpleNamespace(
            monotonic=loop.time,
            time=lambda: BEGIN.timestamp() + loop.time() + clock_offset(),
            perf_counter=loop.time,
        )
        rng = self._rng
        chance = SimpleNamespace(
            choice=rng.choice, token_hex=lambda n=16: f"{rng.getrandbits(8 * n):0{2 * n}x}"
        )
        self._undo, self._undo_clocks = [], []
        for constructor in _constructors():
            by_position, by_name = constructor.__defaults__ or (), constructor.__kwdefaults__ or {}
            if not any(map(_is_clock, (*by_position, *by_name.values()))):
                continue
            self._undo_clocks.append((constructor, constructor.__defaults__, constructor.__kwdefaults__))
            constructor.__defaults__ = tuple(loop.time if _is_clock(one) else one for one in by_position)
            constructor.__kwdefaults__ = {
                name: loop.time if _is_clock(one) else one for name, one in by_name.items()
            }
        for module in [one for name, one in sys.modules.items() if name.startswith("kube_efs.")]:
            for name, value, ours in (
                ("datetime", real_datetime.datetime, Datetime),
                ("time", time, clock),
                ("secrets", secrets, chance),
                ("AwsConnection", AwsConnection, _NoOtherAccounts),
            ):
                if getattr(module, name, None) is value:
                    setattr(module, name, ours)
                    self._undo.append((module, name, value))

    def __exit__(self, *_: object) -> None:
        for module, name, value in self._undo:
            setattr(module, name, value)
        for constructor, by_position, by_name in self._undo_clocks:
            constructor.__defaults__, constructor.__kwdefaults__ = by_position, by_name


def _constructors() -> list[FunctionType]:
    """The constructors of the product."""
    classes = {
        one
        for name, module in list(sys.modules.items())
        if name.startswith("kube_efs.")
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__.startswith("kube_efs.")
    }
    constructors = [vars(one).get("__init__") for one in classes]
    return [one for one in constructors if isinstance(one, FunctionType)]


def _is_clock(value: object) -> bool:
    """Whether this is a clock of the machine."""
    return any(value is clock for clock in (time.monotonic, time.time, time.perf_counter))
