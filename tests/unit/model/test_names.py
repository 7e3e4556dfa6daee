"""The names of installations."""

from dataclasses import asdict

import pytest

from kube_efs.model.names import NameSet


@pytest.mark.parametrize("name", ["config_map", "tunnel", "storage_class"])
def test_names_identify_their_set(name: str) -> None:
    assert len({asdict(one.names)[name] for one in NameSet}) == len(NameSet)


@pytest.mark.parametrize("name_set", NameSet)
def test_every_set_has_its_names_and_the_config_map_of_the_oldest(name_set: NameSet) -> None:
    assert name_set.names.name_set is name_set
    is_oldest = name_set is NameSet.OPENSHIFT_EFS_STUNNEL
    assert name_set.names.older_config_map == (None if is_oldest else "efs-stunnel")
