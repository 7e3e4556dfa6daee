"""Tokens of service accounts: how pods come by them, and whom the server takes their bearers for."""

import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.objects.storage import ObjectKey
from tinykube.objects.users import ADMINISTRATOR, User, Users
from tinykube.objects.values import Json

ACCOUNT = User(
    "system:serviceaccount:default:default",
    ("system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"),
)


@pytest.fixture
def users(inside: Inside) -> Users:
    return Users(inside.store, "the administrator's")


def pod(**spec: object) -> Json:
    container = {"name": "main", "image": "none"}
    return {"metadata": {"name": "web"}, "spec": {"containers": [container], **spec}}


def issue(inside: Inside, users: Users) -> str:
    account = inside.service.get(inside.type_of("serviceaccounts"), ObjectKey("default", "default"))
    return str(users.issue(account, {}, inside.now)["status"]["token"])


def test_bearers_are_recognised(inside: Inside, users: Users) -> None:
    token = issue(inside, users)
    assert users.find(token) == ACCOUNT
    assert users.find("the administrator's") == ADMINISTRATOR
    assert users.find("") is None
    assert users.find(token[:-1]) is None


def test_a_token_ends_with_its_account(inside: Inside, users: Users) -> None:
    token = issue(inside, users)
    inside.delete("serviceaccounts", "default")
    assert users.find(token) is None
    inside.create("serviceaccounts", {"metadata": {"name": "default"}})
    assert users.find(token) is None


def test_pods_get_the_token_where_nothing_else_is(inside: Inside) -> None:
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    taken = {"name": "own", "image": "none", "volumeMounts": [{"name": "v", "mountPath": path}]}
    given = pod(volumes=[{"name": "v", "emptyDir": {}}], initContainers=[taken])
    spec = inside.create("pods", given)["spec"]
    _, volume = spec["volumes"]
    assert volume["name"].startswith("kube-api-access-")
    assert [list(source) for source in volume["projected"]["sources"]] == [
        ["serviceAccountToken"],
        ["configMap"],
        ["downwardAPI"],
    ]
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert mount == {"name": volume["name"], "readOnly": True, "mountPath": path}
    assert len(spec["initContainers"][0]["volumeMounts"]) == 1


@pytest.mark.parametrize(
    ("account", "own", "gets_it"),
    [
        pytest.param(None, None, True, id="nobody says anything"),
        pytest.param(False, None, False, id="the account says no"),
        pytest.param(False, True, True, id="the pod says yes all the same"),
        pytest.param(None, False, False, id="the pod says no"),
    ],
)
def test_who_gets_a_token(inside: Inside, account: bool | None, own: bool | None, gets_it: bool) -> None:
    said = {} if account is None else {"automountServiceAccountToken": account}
    inside.create("serviceaccounts", {"metadata": {"name": "robot"}, **said})
    wish = {} if own is None else {"automountServiceAccountToken": own}
    made = inside.create("pods", pod(serviceAccountName="robot", **wish))
    assert ("volumes" in made["spec"]) is gets_it


def test_a_pod_needs_its_account(inside: Inside) -> None:
    with refused(403, "service account default/ghost not found"):
        inside.create("pods", pod(serviceAccountName="ghost"))
    inside.create("pods", pod(serviceAccountName="ghost", automountServiceAccountToken=False))
