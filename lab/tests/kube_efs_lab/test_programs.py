"""What the processes of an embedded cluster are given."""

from fake_efs.aws_api import CREDENTIALS
from kube_efs.model.secrets import hidden_here, text_without_secrets
from kube_efs_lab.programs import NODE


def test_the_secret_of_the_embedded_account_hides_no_name_in_logs() -> None:
    text = f"ConfigMap efs-stunnel-status-{NODE} of node {NODE}, signed by {CREDENTIALS.access_key_id}"
    with hidden_here([CREDENTIALS.secret_access_key]):
        assert text_without_secrets(text) == text
