"""Runs ``kube-efs doctor``: reads facts, checks them, shows the findings."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from lightkube import AsyncClient
from lightkube.config.kubeconfig import SingleConfig

from kube_efs.doctor.bundle import Bundle, write_bundle
from kube_efs.doctor.checks.common import CsiOption, controllers, csi_option, problem_of
from kube_efs.doctor.checks.constraints import wanted_uses
from kube_efs.doctor.checks.mentions import file_systems_in_use, named_file_systems
from kube_efs.doctor.checks.rights import needed_grants
from kube_efs.doctor.diagnosis import diagnose, is_broken
from kube_efs.doctor.facts import Area, AwsFacts, ClusterFacts, Facts
from kube_efs.doctor.findings import Finding
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.aws import aws_options, gather_aws
from kube_efs.doctor.gathering.bundles import collect_cluster, collect_node
from kube_efs.doctor.gathering.cluster import gather_cluster
from kube_efs.doctor.gathering.node import NodeCheckOptions, gather_node
from kube_efs.doctor.gathering.rights import missing_rights
from kube_efs.doctor.grants import Manifest, grants_of
from kube_efs.doctor.rendering import render_findings, render_tunnels, to_json
from kube_efs.kube.client import connect
from kube_efs.kube.installations import find_installation
from kube_efs.kube.server_time import ServerTime
from kube_efs.model.efs.ids import Region, parse_region
from kube_efs.model.errors import InvalidValue
from kube_efs.model.names import NEW_INSTALLATION, Names, NameSet
from kube_efs.report.tables import make_console
from kube_efs.telemetry.logging import configure

# The objects of an installation with these names.
Installation: TypeAlias = Callable[[Names, CsiOption], Sequence[Manifest]]

# A user waits for the answer.
_PATIENCE_SECONDS = 3.0
_LOOK_SECONDS = 20.0
_NODE_SECONDS = 60.0
_AWS_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """The format of the answer; ``bundle`` is the archive to write, if any."""

    as_json: bool = False
    bundle: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The cluster to read, and the objects to check.

    ``namespace`` and ``name_set`` describe the installation as for ``find_installation``. ``claim`` is a
    claim's name, after its namespace and a slash unless it is in the one that the kubeconfig names.
    ``region`` None takes the one of the controller or of the nodes.
    """

    config: SingleConfig
    namespace: str | None
    name_set: NameSet | None
    claim: str = ""
    region: str | None


async def diagnose_cluster(options: ClusterOptions, installation: Installation, answering: Answering) -> bool:
    """Show the problems of a cluster, or of one of its claims; True if something is broken.

    Raises InvalidSetting when the archive cannot be written.
    """
    configure("ERROR")
    config = options.config
    region = parse_region(options.region, field="--region") if options.region else None
    claim = options.claim
    if claim and "/" not in claim:
        claim = f"{config.namespace or 'default'}/{claim}"
    attempts, bundle = Attempts(timeout_seconds=_LOOK_SECONDS), Bundle()
    server_time = ServerTime()
    async with connect(config, patience_seconds=_PATIENCE_SECONDS, server_time=server_time) as client:
        found = find_installation(client, options.namespace, options.name_set)
        names = await attempts.look("the names of kube-efs", found) or _assumed(options)
        cluster = await examine_cluster(client, names, installation, attempts)
        aws = await examine_aws(cluster, region, attempts)
        if answering.bundle:
            await collect_cluster(client, cluster, bundle, attempts)
    what = f"claim {claim}" if claim else f"cluster {config.context_name}"
    # The clock of the user's computer can be wrong.
    now = server_time.first or datetime.now(UTC)
    facts = Facts(now=now, claim=claim, cluster=cluster, aws=aws, gaps=attempts.gaps)
    return await _tell(facts, what, bundle, answering)


def _assumed(options: ClusterOptions) -> Names:
    """The names of kube-efs in a cluster that does not tell them."""
    names = (options.name_set or NEW_INSTALLATION).names
    return replace(names, namespace=options.namespace or names.namespace)


async def diagnose_node(options: NodeCheckOptions, answering: Answering) -> bool:
    """The same for the node that this process runs on."""
    configure("ERROR")
    attempts, bundle = Attempts(timeout_seconds=_NODE_SECONDS), Bundle()
    node = await gather_node(options, attempts)
    if answering.bundle:
        await collect_node(options, node.kernel, bundle)
    facts = Facts(node=node, gaps=attempts.gaps)
    return await _tell(facts, f"node {options.name}", bundle, answering)


async def examine_cluster(
    client: AsyncClient, names: Names, installation: Installation, attempts: Attempts
) -> ClusterFacts:
    """The facts from the cluster; ``names`` are those of kube-efs."""
    cluster = await gather_cluster(client, names, attempts)
    grants = needed_grants(cluster, grants_of(installation(names, csi_option(cluster))))
    missing = await attempts.look("rights", missing_rights(client, grants, attempts))
    uses = missing_rights(client, wanted_uses(cluster), attempts)
    return replace(
        cluster,
        missing_rights=missing or (),
        missing_uses=await attempts.look("the use of SecurityContextConstraints", uses),
    )


async def examine_aws(cluster: ClusterFacts, region: Region | None, attempts: Attempts) -> AwsFacts | None:
    """The facts from AWS about the cluster's file systems; ``region`` None takes the cluster's own."""
    try:
        region = region or parse_region(_region_of(cluster), field="region")
    except InvalidValue as error:
        remedy = "name the region: --region us-east-1"
        attempts.miss("the region", problem_of(error), area=Area.AWS, remedy=remedy)
        return None
    return await gather_aws(
        aws_options(region, timeout_seconds=_AWS_SECONDS),
        attempts,
        named={one: by[0].kind for one, by in named_file_systems(cluster).items()},
        nodes=cluster.nodes or (),
        cluster_uid=cluster.uid if cluster.volumes is not None else "",
        in_use=file_systems_in_use(cluster),
    )


def _region_of(cluster: ClusterFacts) -> str:
    """The region of the controller's settings, else that of the nodes if they have one; empty if unknown."""
    told = {one.environment["AWS_REGION"] for one in controllers(cluster) if "AWS_REGION" in one.environment}
    found = told or {one.region for one in cluster.nodes or () if one.region}
    return found.pop() if len(found) == 1 else ""


async def _tell(facts: Facts, what: str, bundle: Bundle, answering: Answering) -> bool:
    findings: tuple[Finding, ...] = diagnose(facts)
    document = to_json(findings, what=what, now=facts.now, node=facts.node)
    console = make_console()
    if answering.as_json:
        console.out(document)
    else:
        if facts.node is not None:
            console.print(render_tunnels(facts.node))
        console.print(render_findings(findings, what=what), crop=False)  # commands stay whole
    if answering.bundle:
        bundle.add_text("findings.json", document)
        await asyncio.to_thread(write_bundle, answering.bundle, bundle)
    return is_broken(findings)
