"""The errors of a client whose agent does not answer a call."""

from pathlib import Path

from kube_efs.model.errors import TunnelAgentUnavailable


def unavailable(socket: Path, problem: str) -> TunnelAgentUnavailable:
    """The agent at this socket cannot be called."""
    return TunnelAgentUnavailable(
        problem,
        field="tunnel agent",
        value=str(socket),
        remedy="check that kube-efs tunnel runs on this node and serves this socket",
    )


def outdated(socket: Path) -> TunnelAgentUnavailable:
    """The agent at this socket does not know the call."""
    return TunnelAgentUnavailable(
        "is of an older version, which does not have this call",
        field="tunnel agent",
        value=str(socket),
        remedy="update the DaemonSet of the tunnels",
    )
