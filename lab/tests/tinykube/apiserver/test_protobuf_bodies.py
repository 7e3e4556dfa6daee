"""Bodies as ``kubectl create`` sends them."""

from tinykube.api.protobuf_bodies import parse_protobuf


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    result = b""
    while number > 0x7F:
        result += bytes([number & 0x7F | 0x80])
        number >>= 7
    return result + bytes([number])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def body(api_version: str, kind: str, content: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, api_version) + field(2, kind)) + field(2, content)


_NAMED = field(1, field(1, "one") + field(2, "") + field(3, ""))


def test_lists_and_messages_are_read_and_what_go_writes_though_it_is_not_set_is_left_out() -> None:
    rule = field(2, field(1, "get") + field(1, "list") + field(2, "") + field(3, "pods"))
    assert parse_protobuf(body("rbac.authorization.k8s.io/v1", "Role", _NAMED + rule)) == {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "one"},
        "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}],
    }
