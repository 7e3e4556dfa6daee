"""The size of a page of a list."""

import pytest
from lightkube.core.resource import Resource
from lightkube.resources.core_v1 import Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod

from kube_efs.kube.pages import page_size
from kube_efs.kube.shared_volumes import SharedVolumeResource


@pytest.mark.parametrize("kind", [PersistentVolumeClaim, Pod, Event, SharedVolumeResource])
def test_pages_of_objects_in_namespaces_are_small(kind: type[Resource]) -> None:
    """Users can fill them with objects of more than a megabyte."""
    assert page_size(kind) == 25


@pytest.mark.parametrize("kind", [PersistentVolume, Node, Namespace])
def test_pages_of_objects_of_administrators_are_large(kind: type[Resource]) -> None:
    assert page_size(kind) == 500
