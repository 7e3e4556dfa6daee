import pytest
from lab.tests.tinykube.apiserver.inside import Inside


@pytest.fixture
def inside() -> Inside:
    return Inside()
