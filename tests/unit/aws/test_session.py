"""Sessions of the client library: the descriptions of services need megabytes, and are read once."""

import gc
import ipaddress
import ssl
import weakref
from pathlib import Path

import pytest
from aiobotocore import httpsession
from aiohttp import web
from botocore.exceptions import ClientError
from cryptography import x509
from tests.unit.plain_certificates import make_strict, plain_certificates

from kube_efs.aws.session import new_session


def test_sessions_share_the_descriptions_of_services_while_one_of_them_exists() -> None:
    first, second = new_session(), new_session()
    loader = first.get_component("data_loader")
    assert second.get_component("data_loader") is loader
    released = weakref.ref(loader)
    del first, second, loader
    gc.collect()
    assert released() is None


def test_session_can_be_configured_before_its_configuration_is_read() -> None:
    session = new_session()
    session.set_config_variable("data_path", "/descriptions")
    assert "/descriptions" in session.get_component("data_loader").search_paths


async def test_authority_in_the_bundle_needs_no_extensions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = plain_certificates(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.server)
    make_strict(monkeypatch, httpsession, "create_urllib3_context")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates.authority))

    async def refuse(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=403, text="<Response><Error><Code>AccessDenied</Code></Error></Response>")

    runner = web.ServerRunner(web.Server(refuse))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        async with new_session().create_client(
            "sts",
            region_name="us-east-1",
            endpoint_url=f"https://127.0.0.1:{runner.addresses[0][1]}",
            aws_access_key_id="id",
            aws_secret_access_key="key",
        ) as sts:
            with pytest.raises(ClientError, match="AccessDenied"):
                await sts.get_caller_identity()
    finally:
        await runner.cleanup()
