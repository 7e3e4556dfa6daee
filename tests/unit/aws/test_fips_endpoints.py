"""FIPS endpoints of AWS: the client library reads the variable that our settings check."""

import pytest

from kube_efs.aws.session import new_session


@pytest.mark.parametrize(
    ("service", "region", "url"),
    [
        ("efs", "us-east-1", "https://elasticfilesystem-fips.us-east-1.amazonaws.com"),
        ("efs", "us-gov-west-1", "https://elasticfilesystem-fips.us-gov-west-1.amazonaws.com"),
        ("sts", "us-east-1", "https://sts-fips.us-east-1.amazonaws.com"),
        ("sts", "us-gov-west-1", "https://sts.us-gov-west-1.amazonaws.com"),
        ("ec2", "ca-central-1", "https://ec2-fips.ca-central-1.amazonaws.com"),
    ],
)
@pytest.mark.parametrize("text", ["true", "True"])
async def test_calls_use_fips_endpoints(
    monkeypatch: pytest.MonkeyPatch, service: str, region: str, url: str, text: str
) -> None:
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", text)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    keys = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "unused"}
    async with new_session().create_client(service, region_name=region, **keys) as client:
        assert client.meta.endpoint_url == url
