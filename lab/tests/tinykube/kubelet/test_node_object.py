from datetime import UTC, datetime

from tinykube.kubelet.node import NodeDescription, node_labels, render_node_status

NODE = NodeDescription(name="n", address="10.0.0.1", zone="us-east-1a")


def test_labels_are_the_well_known_ones_and_none_is_empty() -> None:
    labels = node_labels(NODE)
    assert labels["kubernetes.io/hostname"] == "n"
    assert labels["topology.kubernetes.io/zone"] == "us-east-1a"
    assert "topology.kubernetes.io/region" not in labels


def test_status_says_ready_and_where() -> None:
    status = render_node_status(NODE, datetime(2026, 1, 2, tzinfo=UTC))
    assert status["addresses"] == [
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "Hostname", "address": "n"},
    ]
    ready = status["conditions"][0]
    assert (ready["type"], ready["status"], ready["lastHeartbeatTime"]) == (
        "Ready",
        "True",
        "2026-01-02T00:00:00Z",
    )
    assert int(status["capacity"]["cpu"]) >= 1
    assert status["capacity"]["memory"].endswith("Ki")
