import json

import pytest
from google.protobuf.message import Message

from kube_efs.csi.interceptors import secrets_of, shown_request
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.model.secrets import hidden_here, text_without_secrets


def without_secrets_of(request: Message, text: str) -> str:
    with hidden_here(secrets_of(request)):
        return text_without_secrets(text)


_TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"


def test_request_is_logged_with_the_names_of_its_set_fields() -> None:
    request = csi.CreateVolumeRequest(name="pvc-1", parameters={"fileSystemId": "fs-1"})

    assert shown_request(request) == {"name": "pvc-1", "parameters": {"fileSystemId": "fs-1"}}


@pytest.mark.parametrize(
    "request_",
    [
        csi.CreateVolumeRequest(secrets={"externalId": "gh31-xk"}),
        csi.DeleteVolumeRequest(secrets={"externalId": "gh31-xk"}),
        csi.ValidateVolumeCapabilitiesRequest(secrets={"externalId": "gh31-xk"}),
        csi.NodePublishVolumeRequest(secrets={"externalId": "gh31-xk"}),
        csi.NodePublishVolumeRequest(volume_context={_TOKENS: json.dumps({"sts": "gh31-xk"})}),
    ],
    ids=["created", "deleted", "validated", "published", "published with tokens of the pod"],
)
def test_secrets_of_a_request_are_not_logged(request_: Message) -> None:
    assert shown_request(request_) in ({}, {"volume_context": {}})


def test_logging_does_not_change_the_request() -> None:
    request = csi.NodePublishVolumeRequest(
        secrets={"externalId": "gh31-xk"}, volume_context={_TOKENS: "{}", "az": "a"}
    )

    assert shown_request(request) == {"volume_context": {"az": "a"}}
    assert request.secrets == {"externalId": "gh31-xk"}
    assert request.volume_context == {_TOKENS: "{}", "az": "a"}


@pytest.mark.parametrize(
    ("secrets", "text", "clean"),
    [
        pytest.param({"externalId": "gh31"}, "id gh31 denied", "id [removed] denied", id="secret"),
        pytest.param(
            {"a": "gh", "b": "gh31"}, "gh31 gh", "[removed] [removed]", id="secret that is part of another"
        ),
        pytest.param({"crossaccount": "true"}, "is true", "is true", id="harmless word"),
        pytest.param({"externalId": ""}, "id denied", "id denied", id="empty secret"),
        pytest.param({}, "id denied", "id denied", id="no secret"),
    ],
)
def test_secrets_are_removed_from_texts(secrets: dict[str, str], text: str, clean: str) -> None:
    assert without_secrets_of(csi.DeleteVolumeRequest(secrets=secrets), text) == clean


def test_tokens_of_a_pod_are_removed_from_texts() -> None:
    request = csi.NodePublishVolumeRequest(volume_context={_TOKENS: '{"a":1}'})

    assert without_secrets_of(request, 'cannot read {"a":1}') == "cannot read [removed]"


def test_text_is_not_changed_for_a_request_without_secrets() -> None:
    assert without_secrets_of(csi.ProbeRequest(), "fine") == "fine"
