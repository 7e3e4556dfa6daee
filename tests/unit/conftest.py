"""What all unit tests share."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

import botocore.session
import httpx2
import pytest
from aiobotocore import httpsession
from botocore import hooks
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from tests.simulation.virtual import VirtualLoop

Answer = Callable[[httpx2.Request], Coroutine[Any, Any, httpx2.Response]]


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of a test; with the mark ``virtual_time``, no pause passes while anything can run."""
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(scope="session", autouse=True)
def sessions_of_the_aws_library_share_what_they_read() -> Iterator[None]:
    """A session and its client cost a fifth of a second without this, and some tests create hundreds.

    Each session lists and parses the descriptions of 400 services, and inspects the same hundred handlers of
    events. Each client loads the certificates of public CAs, which have not signed for any server of a test.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        patch.setattr(hooks, "accepts_kwargs", lru_cache(1000)(hooks.accepts_kwargs))
        alias = cache(hooks.EventAliaser(event_emitter=None)._alias_event_name)
        patch.setattr(hooks.EventAliaser, "_alias_event_name", staticmethod(alias))
        patch.setattr(httpsession, "get_cert_path", lambda verify: None if verify is True else verify)
        yield


@pytest.fixture
def client_of() -> Callable[[Answer], AsyncClient]:
    """A client of an API server that a function answers for, to give answers that a real one gives rarely."""

    def make(answer: Answer) -> AsyncClient:
        # Insecure, so that no client loads the certificates of public CAs: this takes more time than a test.
        cluster = Cluster(server="http://cluster.example", insecure=True)
        config = KubeConfig.from_one(cluster=cluster, user=User(token="t"))
        return AsyncClient(config, transport=httpx2.MockTransport(answer), field_manager="kube-efs")

    return make
