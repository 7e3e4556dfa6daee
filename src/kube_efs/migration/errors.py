"""The reasons why a claim is not migrated."""

from kube_efs.model.errors import InvalidValue, NotYet


class MigrationRefused(InvalidValue):
    """The claim or its volume cannot be migrated in its current state."""


class ClaimInUse(NotYet):
    """Pods refer to the claim; ``value`` names them."""


class MoveStalled(NotYet):
    """Kubernetes did not do its part in time; nothing is lost."""
