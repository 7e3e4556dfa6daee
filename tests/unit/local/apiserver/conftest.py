import pytest
from tests.unit.local.apiserver.inside import Inside


@pytest.fixture
def inside() -> Inside:
    return Inside()
