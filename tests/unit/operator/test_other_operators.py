"""Other installations in the cluster, on the embedded API server."""

from collections.abc import Callable
from typing import Final

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.models.apps_v1 import DaemonSetSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.models.rbac_v1 import RoleRef, Subject
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.rbac_authorization_v1 import ClusterRoleBinding
from structlog.testing import capture_logs

from kube_efs.model.errors import KubeDenied
from kube_efs.model.names import NameSet
from kube_efs.operator.cluster_csi_driver import DriverResource
from kube_efs.operator.kinds import MANAGED_BY
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.other_operators import OtherOperators

OWN: Final = NameSet.KUBE_EFS.names
OTHER: Final = NameSet.OPENSHIFT_EFS_STUNNEL.names
DRIVER: Final = DriverResource(uid="1", version="1")
BY_ADMINISTRATOR: Final = {"app.kubernetes.io/part-of": "kube-efs"}
BY_OPERATOR: Final = {**BY_ADMINISTRATOR, **MANAGED_BY}


async def installs(
    kube: AsyncClient,
    namespace: str,
    tunnel: str,
    labels: dict[str, str],
    *,
    finalizers: list[str] | None = None,
) -> None:
    await kube.create(Namespace(metadata=ObjectMeta(name=namespace)))
    pods = {"component": tunnel}
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels=pods), spec=PodSpec(containers=[Container(name="a", image="a")])
    )
    metadata = ObjectMeta(name=tunnel, namespace=namespace, labels=labels, finalizers=finalizers)
    spec = DaemonSetSpec(selector=LabelSelector(matchLabels=pods), template=template)
    await kube.create(DaemonSet(metadata=metadata, spec=spec))


async def binds(kube: AsyncClient, namespace: str) -> None:
    binding = ClusterRoleBinding(
        metadata=ObjectMeta(name=f"kube-efs-tunnel:{namespace}"),
        roleRef=RoleRef(apiGroup="rbac.authorization.k8s.io", kind="ClusterRole", name="kube-efs-tunnel"),
        subjects=[Subject(kind="ServiceAccount", name="tunnel", namespace=namespace)],
    )
    await kube.create(binding)


async def found(kube: AsyncClient) -> str:
    return await OtherOperators(ObjectClient(kube), OWN.namespace).find(DRIVER)


@pytest.mark.parametrize("labels", [BY_ADMINISTRATOR, BY_OPERATOR], ids=["administrator", "operator"])
async def test_installation_in_another_namespace_is_found(kube: AsyncClient, labels: dict[str, str]) -> None:
    await installs(kube, OTHER.namespace, OTHER.tunnel, labels)
    # Without the binding, it can be an object of a tenant.
    assert await found(kube) == ""
    await binds(kube, OTHER.namespace)
    message = await found(kube)
    assert message.startswith("DaemonSet openshift-efs-stunnel/efs-stunnel is of another installation")
    assert "kube-efs render --operator --namespace openshift-efs-stunnel" in message


@pytest.mark.parametrize(
    ("labels", "is_found"),
    [(BY_ADMINISTRATOR, False), (BY_OPERATOR, True)],
    ids=["administrator", "operator"],
)
async def test_own_installation_continues_beside_one_without_an_operator(
    kube: AsyncClient, labels: dict[str, str], is_found: bool
) -> None:
    await installs(kube, OTHER.namespace, OTHER.tunnel, labels)
    await installs(kube, OWN.namespace, OWN.tunnel, BY_OPERATOR)
    for one in (OTHER, OWN):
        await binds(kube, one.namespace)
    assert bool(await found(kube)) is is_found


async def test_own_installation_that_is_being_removed_does_not_count(kube: AsyncClient) -> None:
    await installs(kube, OTHER.namespace, OTHER.tunnel, BY_ADMINISTRATOR)
    await installs(kube, OWN.namespace, OWN.tunnel, BY_OPERATOR, finalizers=["example.com/wait"])
    await binds(kube, OTHER.namespace)
    await kube.delete(DaemonSet, OWN.tunnel, namespace=OWN.namespace)
    assert await found(kube)


async def test_operator_with_the_role_of_an_earlier_version_continues(
    client_of: Callable[..., AsyncClient],
) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if "clusterrolebindings" in request.url.path:
            return httpx2.Response(200, json={"kind": "ClusterRoleBindingList", "metadata": {}, "items": []})
        return httpx2.Response(403, json={"kind": "Status", "status": "Failure", "code": 403})

    with capture_logs() as logs:
        assert await found(client_of(answer)) == ""
    assert [one["event"] for one in logs] == ["other-installations-unknown"]


async def test_call_that_was_allowed_before_and_is_denied_now_is_no_answer(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the operator would install its driver beside another one, because the API server has restarted."""
    await installs(kube, OTHER.namespace, OTHER.tunnel, BY_ADMINISTRATOR)
    await binds(kube, OTHER.namespace)
    objects = ObjectClient(kube)
    others = OtherOperators(objects, OWN.namespace)
    assert await others.find(DRIVER)

    async def deny(kind: str, **_where: str) -> None:
        raise KubeDenied("answered 403", field=kind)

    monkeypatch.setattr(objects, "list", deny)
    with pytest.raises(KubeDenied):
        await others.find(DRIVER)
