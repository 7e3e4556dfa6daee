"""An API server that a function answers for, to give answers that a real one gives only rarely."""

from collections.abc import Callable, Coroutine
from typing import Any

import httpx2
import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User

Answer = Callable[[httpx2.Request], Coroutine[Any, Any, httpx2.Response]]


@pytest.fixture
def client_of() -> Callable[[Answer], AsyncClient]:
    def make(answer: Answer) -> AsyncClient:
        config = KubeConfig.from_one(cluster=Cluster(server="http://cluster.example"), user=User(token="t"))
        return AsyncClient(config, transport=httpx2.MockTransport(answer), field_manager="kube-efs")

    return make
