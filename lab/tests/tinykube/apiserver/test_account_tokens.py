"""Tokens of service accounts: how pods come by them, and whom the server takes their bearers for."""

from datetime import timedelta

import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.objects.users import ADMINISTRATOR, POD_TOKEN_SECONDS, User, Users
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


def issue(inside: Inside, users: Users, **spec: object) -> str:
    issued = users.issue(inside.get("serviceaccounts", "default"), {"spec": spec}, inside.now)
    return str(issued["status"]["token"])


def bound_to(found: Json) -> Json:
    return {"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": found["metadata"]["uid"]}


def test_bearers_are_recognised(inside: Inside, users: Users) -> None:
    token = issue(inside, users)
    assert users.find(token, inside.now) == ACCOUNT
    assert users.find("the administrator's", inside.now) == ADMINISTRATOR
    assert users.find("", inside.now) is None
    assert users.find(token[:-1], inside.now) is None


def test_a_token_ends_with_its_time(inside: Inside, users: Users) -> None:
    token = issue(inside, users, expirationSeconds=600)
    assert users.find(token, inside.now + timedelta(seconds=599)) == ACCOUNT
    assert users.find(token, inside.now + timedelta(seconds=600)) is None


def test_a_token_ends_with_its_account(inside: Inside, users: Users) -> None:
    token = issue(inside, users)
    inside.delete("serviceaccounts", "default")
    assert users.find(token, inside.now) is None
    inside.create("serviceaccounts", {"metadata": {"name": "default"}})
    assert users.find(token, inside.now) is None


def test_a_pods_token_lives_as_long_as_the_pod(inside: Inside, users: Users) -> None:
    made = inside.create("pods", pod())
    token = issue(inside, users, expirationSeconds=POD_TOKEN_SECONDS, boundObjectRef=bound_to(made))
    assert users.find(token, inside.now + timedelta(days=100)) == ACCOUNT
    inside.delete("pods", "web")
    assert users.find(token, inside.now) is None


def test_a_token_for_somebody_else_is_not_good_here(inside: Inside, users: Users) -> None:
    assert users.find(issue(inside, users, audiences=["vault"]), inside.now) is None


def test_requests_that_cannot_be_met(inside: Inside, users: Users) -> None:
    with refused(422, "spec.expirationSeconds: must be at least 600"):
        issue(inside, users, expirationSeconds=599)
    with refused(404, 'pods "web" not found'):
        issue(inside, users, boundObjectRef={"kind": "Pod", "name": "web", "uid": "x"})
    inside.create("pods", pod())
    with refused(404, 'pods "web" not found'):
        issue(inside, users, boundObjectRef={"kind": "Pod", "name": "web", "uid": "another"})


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
