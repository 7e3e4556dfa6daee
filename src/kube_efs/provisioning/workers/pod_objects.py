"""Worker pods as objects: the Pod that is created for a job, and the observed state of a Pod."""

import secrets
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from kube_efs.kube.building import WORKER, WorkerPod, build_worker_pod
from kube_efs.model.efs.directories import Directory, Relation
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL, WORKER_LABELS
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID, PREFIX, root_name
from kube_efs.provisioning.workers.orders import Action, Item, Job, PodOrder, parse_order, render_arguments
from kube_efs.provisioning.workers.placement import Placement
from kube_efs.settings.controller import ControllerSettings

LEADER = "leader"
MOUNT_PATH = "/efs"
_CHANGING = frozenset({Action.MAKE, Action.REMOVE, Action.COPY})
# A removal of the whole file system starts these itself, so they need no confirmation.
_UNCONFIRMED = frozenset({Action.LIST})
# A copy that takes longer continues in another pod.
COPY_SECONDS = 24 * 3600

# The sidecar of a service mesh does not end with the worker, so the pod would end at its deadline, and count
# as failed. Istio reads a label, Linkerd an annotation.
_NO_SIDECAR_LABELS: Mapping[str, str] = MappingProxyType({"sidecar.istio.io/inject": "false"})
_NO_SIDECAR_ANNOTATIONS: Mapping[str, str] = MappingProxyType({"linkerd.io/inject": "disabled"})
# The scheduling gate of a pod until its order is confirmed.
_GATE = f"{PREFIX}/order"
_POOL = f"{PREFIX}/worker-pool"
_NAME_MAX = 63
_WORDS: Mapping[Action, str] = MappingProxyType(
    {
        Action.MAKE: "init",
        Action.REMOVE: "clean",
        Action.LIST: "list",
        Action.MEASURE: "usage",
        Action.EMPTY: "empty",
        Action.COPY: "copy",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of worker pods.

    A pod may take ``start_seconds`` to start and ``timeout_seconds`` to work. It gets at most ``batch_max``
    directories. Of the processes with the same ``pool``, one works at a time, such as the leader. It deletes
    the pods that the previous one left. ``with_driver``: each pod mounts the root of the file system with the
    CSI driver, by a claim and a volume of its own; otherwise all pods share a root claim. ``tunnels`` is the
    DaemonSet of the tunnels, and ``own_pod`` the pod of this process, if it has one.
    """

    namespace: str
    image: str
    service_account: str = OPENSHIFT_EFS_STUNNEL.worker_account
    timeout_seconds: int = 300
    start_seconds: float = 60.0
    batch_max: int = 500
    pool: str = LEADER
    with_driver: bool = False
    tunnels: str = OPENSHIFT_EFS_STUNNEL.tunnel
    own_pod: str = ""

    @classmethod
    def from_settings(cls, settings: ControllerSettings, *, pool: str = LEADER) -> Self:
        """The options for the leader, and for the CSI socket of a replica."""
        return cls(
            namespace=settings.namespace,
            image=settings.worker_image,
            service_account=settings.worker_service_account or settings.names.worker_account,
            timeout_seconds=round(settings.worker_timeout_seconds),
            batch_max=settings.worker_batch,
            pool=pool,
            with_driver=settings.workers_use_driver,
            tunnels=settings.names.tunnel,
            own_pod=settings.identity,
        )

    @property
    def longest_seconds(self) -> float:
        """The maximum time from a pod's creation to its end, except for copies."""
        return self.start_seconds + self.timeout_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """The last known state of a worker pod; ``since`` is when it was first seen, by the loop's clock.

    ``order`` has its action and directories, as far as its arguments contain them.
    """

    pod: Pod
    since: float
    order: PodOrder

    @property
    def name(self) -> str:
        """The name of the Pod."""
        return self._metadata.name or ""

    @property
    def uid(self) -> str:
        """The uid of the Pod; another Pod of the same name has another one."""
        return self._metadata.uid or ""

    @property
    def resource_version(self) -> str:
        """The version of the object; every change of the Pod changes it."""
        return self._metadata.resourceVersion or ""

    @property
    def created(self) -> str:
        """When the Pod was created; later ones are greater."""
        return str(self._metadata.creationTimestamp)

    @property
    def pool(self) -> str | None:
        """The pool that created it; an earlier version named none."""
        return (self._metadata.annotations or {}).get(_POOL)

    @property
    def file_system_id(self) -> FileSystemId:
        """The file system that it works on; empty when it is unknown."""
        return FileSystemId((self._metadata.annotations or {}).get(FILE_SYSTEM_ID, ""))

    @property
    def root_claim(self) -> str | None:
        """The name of the claim with the root of the file system."""
        volumes = (self.pod.spec and self.pod.spec.volumes) or ()
        claims = (one.persistentVolumeClaim for one in volumes)
        return next((one.claimName for one in claims if one), None)

    @property
    def node(self) -> str | None:
        """The node that it runs on, once it has one."""
        return self.pod.spec.nodeName if self.pod.spec else None

    @property
    def is_gated(self) -> bool:
        """Whether it has not been started."""
        return bool(self.pod.spec and self.pod.spec.schedulingGates)

    @property
    def is_pending(self) -> bool:
        """Whether no container of it runs yet."""
        return self._phase == "Pending"

    @property
    def is_deleting(self) -> bool:
        """Whether it was deleted; it may still run."""
        return self._metadata.deletionTimestamp is not None

    @property
    def has_succeeded(self) -> bool:
        """Whether it has ended successfully."""
        return self._phase == "Succeeded"

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with failures."""
        return self._phase == "Failed"

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, so that it changes nothing."""
        return self.has_succeeded or self.has_failed

    @property
    def message(self) -> str:
        """Its termination message, otherwise the message of Kubernetes; empty without both."""
        status = self.pod.status
        for container in (status and status.containerStatuses) or []:
            terminated = container.state and container.state.terminated
            if container.name == WORKER and terminated and terminated.message:
                return terminated.message
        return (status and (status.message or status.reason)) or ""

    @property
    def working_seconds(self) -> int | None:
        """How long it may work, if it says so; Kubernetes ends it then."""
        return self.pod.spec.activeDeadlineSeconds if self.pod.spec else None

    def uses(self, file_system_id: FileSystemId) -> bool:
        """Whether it mounts the file system, or may do so later, for more than a list of directories."""
        is_on = not self.has_ended and self.file_system_id == file_system_id
        return is_on and self.order.action not in _UNCONFIRMED

    def is_near(self, file_system_id: FileSystemId, directories: Iterable[Directory]) -> bool:
        """Whether it can still change one of these directories, or one above or below them."""
        own = self.order.directories
        return self._may_change(file_system_id) and (own is None or _are_near(own, directories))

    def blocks(self, file_system_id: FileSystemId, order: PodOrder) -> bool:
        """Whether the order must wait for its end.

        Nothing else may change the directories of one of the two, or remove what the other one copies.
        """
        if not self._may_change(file_system_id) or not _changes(order.action):
            return False
        own, theirs = self.order.directories, order.directories or ()
        if own is None or _are_near(own, theirs):
            return True
        if self.order.action is Action.REMOVE and order.source is not None:
            return _are_near(own, [order.source])
        if order.action is Action.REMOVE and self.order.source is not None:
            return _are_near([self.order.source], theirs)
        return False

    def _may_change(self, file_system_id: FileSystemId) -> bool:
        is_on = not self.has_ended and self.file_system_id == file_system_id
        return is_on and _changes(self.order.action)

    @property
    def _metadata(self) -> ObjectMeta:
        return self.pod.metadata or ObjectMeta()

    @property
    def _phase(self) -> str | None:
        return self.pod.status.phase if self.pod.status else None


def _changes(action: Action | None) -> bool:
    """Whether a pod changes its directories; None is an action that this version does not know."""
    return action is None or action in _CHANGING


def _are_near(some: Iterable[Directory], others: Iterable[Directory]) -> bool:
    others = tuple(others)
    return any(one.relation_to(other) is not Relation.APART for one in some for other in others)


def observe_pod(pod: Pod, *, since: float) -> ObservedPod:
    """The state of a Pod that was first seen at that time."""
    containers = (pod.spec and pod.spec.containers) or ()
    arguments: Sequence[str] = next((one.args or () for one in containers if one.name == WORKER), ())
    # ``_escaped`` has doubled each of them.
    order = parse_order([one.replace("$$", "$") for one in arguments])
    return ObservedPod(pod=pod, since=since, order=order)


def pod_for(
    file_system_id: FileSystemId,
    job: Job,
    items: Sequence[Item],
    options: WorkerOptions,
    placement: Placement,
) -> Pod:
    """A Pod for the job; it has a gate, and runs after its removal, unless it only lists directories."""
    name = _pod_name(file_system_id, job.action, items[0].directory)
    return build_worker_pod(
        WorkerPod(
            namespace=options.namespace,
            name=name,
            labels={**WORKER_LABELS, **_NO_SIDECAR_LABELS},
            annotations={FILE_SYSTEM_ID: file_system_id, _POOL: options.pool, **_NO_SIDECAR_ANNOTATIONS},
            image=options.image,
            arguments=_escaped(render_arguments(job, items, root=MOUNT_PATH)),
            service_account=options.service_account,
            root_claim=name if options.with_driver else root_name(file_system_id),
            mount_path=MOUNT_PATH,
            timeout_seconds=COPY_SECONDS if job.action is Action.COPY else options.timeout_seconds,
            node_selector=placement.node_selector,
            node_terms=placement.terms,
            preferred_nodes=placement.preferred,
            tolerations=placement.tolerations,
            gate=None if job.action in _UNCONFIRMED else _GATE,
        )
    )


def _escaped(arguments: Sequence[str]) -> list[str]:
    """The arguments in the form that Kubernetes needs: it would expand ``$(NAME)`` as a variable."""
    return [argument.replace("$", "$$") for argument in arguments]


def _pod_name(file_system_id: FileSystemId, action: Action, directory: Directory) -> str:
    """``efs-<init|clean|list|usage|empty|copy>-<fs id>-<path>-<5 characters>``, with a truncated path."""
    readable = "-".join(directory.parts).lower()
    path = "".join(letter if letter in string.ascii_lowercase + string.digits else "-" for letter in readable)
    suffix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(5))
    start = f"efs-{_WORDS[action]}-{file_system_id}-{path}"[: _NAME_MAX - len(suffix) - 1].rstrip("-")
    return f"{start}-{suffix}"
