"""All topics of checks, in the order of the findings."""

from kube_efs.doctor.checks import (
    claims,
    constraints,
    file_systems,
    gaps,
    handshakes,
    installation,
    kernel,
    network_acls,
    nodes,
    pods,
    rights,
    security_groups,
    shared_volumes,
    storage_classes,
    targets,
    trash,
    tunnels,
    volumes,
)
from kube_efs.doctor.findings import Topic

TOPICS: tuple[Topic, ...] = (
    installation.TOPIC,
    rights.TOPIC,
    constraints.TOPIC,
    storage_classes.TOPIC,
    claims.TOPIC,
    volumes.TOPIC,
    trash.TOPIC,
    shared_volumes.TOPIC,
    pods.TOPIC,
    targets.TOPIC,
    file_systems.TOPIC,
    security_groups.TOPIC,
    network_acls.TOPIC,
    nodes.TOPIC,
    tunnels.TOPIC,
    handshakes.TOPIC,
    kernel.TOPIC,
    gaps.TOPIC,
)
