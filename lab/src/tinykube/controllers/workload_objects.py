"""The objects that workloads make: pods, claims and ReplicaSets."""

from lightkube.models.apps_v1 import ReplicaSetSpec
from lightkube.models.core_v1 import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PersistentVolumeClaimVolumeSource,
    PodSpec,
    PodTemplateSpec,
    Toleration,
    Volume,
)
from lightkube.models.core_v1 import (
    PersistentVolumeClaim as ClaimTemplate,
)
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta, OwnerReference
from lightkube.resources.apps_v1 import ReplicaSet as ReplicaSetObject
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod
from msgspec.structs import replace

from tinykube.controllers.values import Meta
from tinykube.controllers.workloads import (
    REVISION_LABEL,
    TEMPLATE_LABEL,
    DaemonSet,
    Deployment,
    ReplicaSet,
    StatefulSet,
    template_name,
)

_API_VERSION = "apps/v1"
_POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
# What pods of DaemonSets do not mind about a node (pkg/controller/daemon/util/daemonset_util.go).
_EVERYWHERE = (
    *(
        Toleration(key=f"node.kubernetes.io/{taint}", operator="Exists", effect="NoExecute")
        for taint in ("not-ready", "unreachable")
    ),
    *(
        Toleration(key=f"node.kubernetes.io/{taint}", operator="Exists", effect="NoSchedule")
        for taint in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
    ),
)
_POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"


def build_numbered_pod(owner: StatefulSet, ordinal: int) -> Pod:
    """The pod of that ordinal, with its claims in the place of volumes of their templates' names."""
    name = owner.pod_name(ordinal)
    spec = owner.template.spec or PodSpec(containers=[])
    claimed = {
        template_name(template): owner.claim_name(template, ordinal) for template in owner.claim_templates
    }
    kept = [volume for volume in spec.volumes or () if volume.name not in claimed]
    volumes = [
        Volume(name=volume, persistentVolumeClaim=PersistentVolumeClaimVolumeSource(claimName=claim))
        for volume, claim in claimed.items()
    ]
    labels = {_POD_NAME_LABEL: name, _POD_INDEX_LABEL: str(ordinal), REVISION_LABEL: owner.revision}
    return Pod(
        metadata=_metadata(owner.meta, "StatefulSet", owner.template, labels, name=name),
        spec=replace(
            spec, hostname=name, subdomain=owner.service_name or spec.subdomain, volumes=[*kept, *volumes]
        ),
    )


def build_claim(owner: StatefulSet, template: ClaimTemplate, ordinal: int) -> PersistentVolumeClaim:
    """The claim of that ordinal; it belongs to nobody, so that it outlives the set."""
    meta = template.metadata or ObjectMeta()
    return PersistentVolumeClaim(
        metadata=ObjectMeta(
            namespace=owner.meta.key.namespace,
            name=owner.claim_name(template, ordinal),
            labels={**(meta.labels or {}), **owner.match_labels},
            annotations=meta.annotations,
        ),
        spec=template.spec,
    )


def build_replica_pod(owner: ReplicaSet) -> Pod:
    """One more pod of the set; the server names it."""
    return Pod(
        metadata=_metadata(owner.meta, "ReplicaSet", owner.template, {}, generate=f"{owner.meta.key.name}-"),
        spec=owner.template.spec,
    )


def build_node_pod(owner: DaemonSet, node: str) -> Pod:
    """The pod of a node, which no other node may have; the server names it."""
    spec = owner.template.spec or PodSpec(containers=[])
    here = NodeSelectorRequirement(key="metadata.name", operator="In", values=[node])
    only_here = NodeSelector(nodeSelectorTerms=[NodeSelectorTerm(matchFields=[here])])
    affinity = replace(
        spec.affinity or Affinity(),
        nodeAffinity=NodeAffinity(requiredDuringSchedulingIgnoredDuringExecution=only_here),
    )
    mark = {REVISION_LABEL: owner.revision}
    return Pod(
        metadata=_metadata(owner.meta, "DaemonSet", owner.template, mark, generate=f"{owner.meta.key.name}-"),
        spec=replace(spec, affinity=affinity, tolerations=[*(spec.tolerations or ()), *_EVERYWHERE]),
    )


def build_replica_set(owner: Deployment, replicas: int) -> ReplicaSetObject:
    """The ReplicaSet of the present template."""
    mark = {TEMPLATE_LABEL: owner.revision}
    name = f"{owner.meta.key.name}-{owner.revision}"
    meta = owner.template.metadata or ObjectMeta()
    labels = {**(meta.labels or {}), **mark}
    return ReplicaSetObject(
        metadata=_metadata(owner.meta, "Deployment", owner.template, mark, name=name),
        spec=ReplicaSetSpec(
            replicas=replicas,
            selector=LabelSelector(
                matchLabels={**(owner.spec_selector.matchLabels or {}), **mark},
                matchExpressions=owner.spec_selector.matchExpressions,
            ),
            template=replace(owner.template, metadata=replace(meta, labels=labels)),
        ),
    )


def controlled_by(owner: Meta, kind: str) -> OwnerReference:
    """The reference by which an object says that a workload of this kind controls it."""
    return OwnerReference(
        apiVersion=_API_VERSION,
        kind=kind,
        name=owner.key.name,
        uid=owner.uid,
        controller=True,
        blockOwnerDeletion=True,
    )


def _metadata(
    owner: Meta,
    kind: str,
    template: PodTemplateSpec,
    labels: dict[str, str],
    *,
    name: str | None = None,
    generate: str | None = None,
) -> ObjectMeta:
    """Labels and annotations of the template, these labels, and the owner."""
    meta = template.metadata or ObjectMeta()
    return ObjectMeta(
        namespace=owner.key.namespace,
        name=name,
        generateName=generate,
        labels={**(meta.labels or {}), **labels},
        annotations=meta.annotations,
        ownerReferences=[controlled_by(owner, kind)],
    )
