"""The host access of pods, and SecurityContextConstraints, with the rendered manifests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import AsyncClient
from lightkube.codecs import from_dict
from lightkube.generic_resource import create_global_resource

from kube_efs.doctor.checks.constraints import account_of, needy, wanted_uses
from kube_efs.doctor.constraints import HostAccess, read_constraints
from kube_efs.doctor.diagnosis import diagnose
from kube_efs.doctor.facts import Facts
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.objects import read_workload
from kube_efs.doctor.run import examine_cluster
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.operator.manifests import RenderOptions, render_manifests
from kube_efs.operator.platforms import Platform

NAMES = NEW_INSTALLATION.names
_DEFINITION = Path(__file__).parents[2] / "conformance" / "security-context-constraints-crd.yaml"
_KIND = "SecurityContextConstraints"
# Defined here, because other tests of this process may or may not have defined it.
_RESOURCE = create_global_resource("security.openshift.io", "v1", _KIND, "securitycontextconstraints")
_NEEDS = {
    (NAMES.tunnel, False): {HostAccess.NETWORK, HostAccess.PORTS},
    (NAMES.tunnel, True): {HostAccess.NETWORK, HostAccess.PORTS, HostAccess.FOLDERS},
    (NAMES.node, True): set(HostAccess),
}


def _rendered(*, csi: bool) -> dict[tuple[str, str], Any]:
    options = RenderOptions(platform=Platform.OPENSHIFT, namespace="efs", create_namespace=True, csi=csi)
    return {(one["kind"], one["metadata"]["name"]): one for one in render_manifests(options)}


@pytest.mark.parametrize(("name", "csi"), _NEEDS)
def test_rendered_constraints_allow_the_needs_of_rendered_workloads(name: str, csi: bool) -> None:
    manifests = _rendered(csi=csi)
    workload = read_workload("DaemonSet", manifests["DaemonSet", name])
    assert workload.needs == _NEEDS[name, csi]
    assert workload.account == name
    fitting = [
        one
        for (kind, _), manifest in manifests.items()
        if kind == _KIND and (one := read_constraints(manifest)).names(account_of(workload))
    ]
    assert [one.name for one in fitting if workload.needs <= one.allows]


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        pytest.param({"allowHostDirVolumePlugin": False}, HostAccess.FOLDERS, id="no hostPath volumes"),
        pytest.param({"volumes": ["emptyDir"]}, HostAccess.FOLDERS, id="no directories as volumes"),
        pytest.param({"allowHostNetwork": False}, HostAccess.NETWORK, id="no network"),
        pytest.param({"allowHostPorts": False}, HostAccess.PORTS, id="no ports"),
        pytest.param({"allowPrivilegedContainer": False}, HostAccess.PRIVILEGED, id="no privilege"),
    ],
)
def test_missing_permission_of_constraints_is_found(changes: dict[str, Any], missing: HostAccess) -> None:
    manifest = _rendered(csi=True)[_KIND, NAMES.node]
    assert read_constraints(manifest).allows == set(HostAccess)
    assert read_constraints({**manifest, **changes}).allows == set(HostAccess) - {missing}


async def test_openshift_is_recognized_by_its_kind(kube: AsyncClient) -> None:
    manifests = _rendered(csi=True)
    assert (await _examine(kube)).constraints is None
    await _create(kube, _DEFINITION.read_text(encoding="utf-8"))
    for one in (("Namespace", "efs"), ("DaemonSet", NAMES.node)):
        await _create(kube, yaml.safe_dump(manifests[one]))

    cluster = await _examine(kube)
    assert cluster.constraints == ()
    (told,) = (one for one in diagnose(Facts(cluster=cluster)) if one.kind.id == "scc/missing")
    assert told.subject.name == f"efs/{NAMES.node}"
    options = f"--for openshift --csi --names {NEW_INSTALLATION} --namespace efs"
    assert str(told.commands[0]) == f"kube-efs render {options} | kubectl diff -f -"

    await _create(kube, yaml.safe_dump(manifests[_KIND, NAMES.node]))
    cluster = await _examine(kube)
    assert [one.name for one in cluster.constraints or ()] == [NAMES.node]
    assert list(needy(cluster)) == []
    assert wanted_uses(cluster) == ()


async def _create(kube: AsyncClient, text: str) -> None:
    for body in yaml.safe_load_all(text):
        await kube.create(_RESOURCE(body) if body["kind"] == _KIND else from_dict(body))


async def _examine(kube: AsyncClient) -> Any:
    return await examine_cluster(
        kube,
        replace(NAMES, namespace="efs"),
        lambda _names, _csi: (),
        Attempts(timeout_seconds=30),
    )
