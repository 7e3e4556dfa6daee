"""Which installation of a cluster the commands and the operator use."""

from dataclasses import replace
from itertools import permutations

import pytest
from lightkube import AsyncClient
from lightkube.models.apps_v1 import DaemonSetSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import ConfigMap, Namespace

from kube_efs.kube.installations import find_installation
from kube_efs.model.names import NEW_INSTALLATION, NameSet
from kube_efs.operator.run import find_names
from kube_efs.settings.operator import OperatorSettings


async def install(kube: AsyncClient, name_set: NameSet, namespace: str) -> None:
    """Create the ConfigMap that is left of an installation when everything else is removed."""
    await kube.create(ConfigMap(metadata=ObjectMeta(name=name_set.names.config_map, namespace=namespace)))


@pytest.mark.parametrize("name_set", NameSet)
async def test_installation_is_found_by_its_names(kube: AsyncClient, name_set: NameSet) -> None:
    namespace = name_set.names.namespace
    if namespace != "kube-system":
        await kube.create(Namespace(metadata=ObjectMeta(name=namespace)))
    await install(kube, name_set, namespace)
    assert await find_installation(kube, None, None) == name_set.names


@pytest.mark.parametrize("namespace", ["openshift-cluster-csi-drivers", "openshift-operators"])
@pytest.mark.parametrize("name_set", NameSet)
async def test_installation_of_an_operator_is_found_in_its_usual_namespaces(
    kube: AsyncClient, name_set: NameSet, namespace: str
) -> None:
    await kube.create(Namespace(metadata=ObjectMeta(name=namespace)))
    await run_tunnels(kube, name_set, namespace)
    expected = replace(name_set.names, namespace=namespace)
    assert await find_installation(kube, None, None) == expected
    assert await find_installation(kube, None, name_set) == expected
    # What is left of an earlier installation does not hide the running one.
    await kube.create(Namespace(metadata=ObjectMeta(name=NameSet.KUBE_EFS.names.namespace)))
    await install(kube, NameSet.KUBE_EFS, NameSet.KUBE_EFS.names.namespace)
    assert await find_installation(kube, None, None) == expected


async def test_given_names_without_an_installation_are_used_in_their_namespace(kube: AsyncClient) -> None:
    found = await find_installation(kube, None, NameSet.AWS_EFS_CSI_DRIVER)
    assert found == NameSet.AWS_EFS_CSI_DRIVER.names


async def test_installation_is_found_in_the_given_namespace(kube: AsyncClient) -> None:
    await install(kube, NameSet.KUBE_EFS, "default")
    found = await find_installation(kube, "default", None)
    assert found == replace(NameSet.KUBE_EFS.names, namespace="default")


async def test_given_names_are_used_without_a_search(kube: AsyncClient) -> None:
    await install(kube, NameSet.KUBE_EFS, "default")
    found = await find_installation(kube, "default", NameSet.AWS_EFS_CSI_DRIVER)
    assert found == replace(NameSet.AWS_EFS_CSI_DRIVER.names, namespace="default")


async def test_cluster_without_kube_efs_has_the_names_of_a_new_installation(kube: AsyncClient) -> None:
    assert await find_installation(kube, None, None) == NEW_INSTALLATION.names


@pytest.mark.parametrize("requested", NameSet)
@pytest.mark.parametrize("installed", NameSet)
async def test_operator_keeps_the_names_that_it_finds(
    kube: AsyncClient, requested: NameSet, installed: NameSet
) -> None:
    settings = OperatorSettings(name_set=requested, namespace="default")
    assert await find_names(kube, settings) is requested
    await install(kube, installed, "default")
    assert await find_names(kube, settings) is installed


async def run_tunnels(kube: AsyncClient, name_set: NameSet, namespace: str) -> None:
    """Create the DaemonSet of the tunnels."""
    labels = {"app": "tunnel"}
    await kube.create(
        DaemonSet(
            metadata=ObjectMeta(name=name_set.names.tunnel, namespace=namespace),
            spec=DaemonSetSpec(
                selector=LabelSelector(matchLabels=labels),
                template=PodTemplateSpec(
                    metadata=ObjectMeta(labels=labels),
                    spec=PodSpec(containers=[Container(name="tunnel", image="kube-efs")]),
                ),
            ),
        )
    )


@pytest.mark.parametrize(("first", "second"), [*permutations(NameSet, 2)])
async def test_second_installation_does_not_hide_the_one_with_the_ports(
    kube: AsyncClient, first: NameSet, second: NameSet
) -> None:
    await install(kube, first, "default")
    for name_set in (first, second):
        await run_tunnels(kube, name_set, "default")
    assert (await find_installation(kube, "default", None)).name_set is first
    settings = OperatorSettings(name_set=second, namespace="default")
    assert await find_names(kube, settings) is first


async def test_config_map_that_another_installation_left_is_not_an_installation(kube: AsyncClient) -> None:
    for name_set in NameSet:
        await install(kube, name_set, "default")
    names = NameSet.KUBE_EFS.names
    await run_tunnels(kube, NameSet.KUBE_EFS, "default")
    assert await find_installation(kube, "default", None) == replace(names, namespace="default")
    settings = OperatorSettings(name_set=NameSet.AWS_EFS_CSI_DRIVER, namespace="default")
    assert await find_names(kube, settings) is NameSet.KUBE_EFS
