"""StatefulSets, ReplicaSets and Deployments as their controllers see them, and what is said of their state.

Templates are passed on to pods and claims as they are; nobody here looks into them but for their labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lightkube.models.core_v1 import PersistentVolumeClaim, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector

from tinykube.controllers.values import Controller, Meta, Requirement, nothing

# The labels by which a pod says which template it was made from (apps/v1).
REVISION_LABEL = "controller-revision-hash"
TEMPLATE_LABEL = "pod-template-hash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How many pods there are, and how many of them are in order; a ready pod is available at once."""

    total: int = 0
    ready: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulSetStatus:
    """``status`` of a StatefulSet; ``updated`` counts pods of the present template."""

    observed_generation: int = 0
    replicas: Replicas = Replicas()
    updated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulSet:
    """A StatefulSet; ``revision`` tells its template from others."""

    meta: Meta
    generation: int
    replicas: int
    service_name: str = ""
    selector: tuple[Requirement, ...] = ()
    match_labels: Mapping[str, str] = field(default_factory=nothing)
    revision: str = ""
    template: PodTemplateSpec = field(default_factory=PodTemplateSpec)
    claim_templates: tuple[PersistentVolumeClaim, ...] = ()
    status: StatefulSetStatus = StatefulSetStatus()

    @property
    def ordinals(self) -> range:
        """The pods that there are to be."""
        return range(self.replicas)

    def pod_name(self, ordinal: int) -> str:
        """The pod of that ordinal."""
        return f"{self.meta.key.name}-{ordinal}"

    def claim_name(self, template: PersistentVolumeClaim, ordinal: int) -> str:
        """The claim that the pod of that ordinal gets from a template."""
        return f"{template_name(template)}-{self.pod_name(ordinal)}"


def template_name(template: PersistentVolumeClaim) -> str:
    """The name of a template of claims, which is that of the volume in the pods too."""
    return (template.metadata and template.metadata.name) or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetStatus:
    """``status`` of a ReplicaSet."""

    observed_generation: int = 0
    replicas: Replicas = Replicas()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSet:
    """A ReplicaSet; ``controller`` is the Deployment that it belongs to, if any."""

    meta: Meta
    generation: int
    replicas: int
    selector: tuple[Requirement, ...] = ()
    controller: Controller | None = None
    template: PodTemplateSpec = field(default_factory=PodTemplateSpec)
    status: ReplicaSetStatus = ReplicaSetStatus()

    @property
    def ready(self) -> int:
        """How many of its wanted pods are in order; its status may still count one too many."""
        return min(self.status.replicas.ready, self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadCondition:
    """One of a Deployment's conditions, and since when it is true or false."""

    type: str
    status: bool
    reason: str
    message: str
    since: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentStatus:
    """``status`` of a Deployment; ``updated`` counts pods of the present template."""

    observed_generation: int = 0
    replicas: Replicas = Replicas()
    updated: int = 0
    conditions: tuple[WorkloadCondition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A Deployment. ``revision`` is the hash of its template, ``spec_selector`` is the selector as written.

    ``surge`` and ``unavailable`` are how many pods there may be more, and less, while it is rolled out;
    ``recreates`` when all old ones go first.
    """

    meta: Meta
    generation: int
    replicas: int
    paused: bool = False
    recreates: bool = False
    surge: int = 0
    unavailable: int = 0
    selector: tuple[Requirement, ...] = ()
    spec_selector: LabelSelector = field(default_factory=LabelSelector)
    revision: str = ""
    template: PodTemplateSpec = field(default_factory=PodTemplateSpec)
    status: DeploymentStatus = DeploymentStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSetStatus:
    """``status`` of a DaemonSet, in nodes; a ready pod is available at once."""

    observed_generation: int = 0
    desired: int = 0
    current: int = 0
    misscheduled: int = 0
    ready: int = 0
    updated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSet:
    """A DaemonSet. ``revision`` is the hash of its template.

    ``unavailable`` is how many nodes may be without a ready pod while it is rolled out, in per cent of all
    nodes too; None when people replace the pods themselves (OnDelete).
    """

    meta: Meta
    generation: int
    selector: tuple[Requirement, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=nothing)
    unavailable: int | None = 1
    revision: str = ""
    template: PodTemplateSpec = field(default_factory=PodTemplateSpec)
    status: DaemonSetStatus = DaemonSetStatus()
