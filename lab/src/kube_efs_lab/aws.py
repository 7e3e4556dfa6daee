"""The embedded AWS API as kube-efs calls it."""

from fake_efs.aws_api import CREDENTIALS
from kube_efs.aws.connection import AwsCredentials, AwsOptions
from kube_efs.model.efs.ids import Region


def aws_options(endpoint_url: str, region: str = "us-east-1") -> AwsOptions:
    """How the embedded AWS API at this address is called."""
    credentials = AwsCredentials(
        access_key_id=CREDENTIALS.access_key_id, secret_access_key=CREDENTIALS.secret_access_key
    )
    return AwsOptions(region=Region(region), endpoint_url=endpoint_url, credentials=credentials)
