"""Why a claim is not moved."""

from kube_efs.model.errors import InvalidValue, NotYet


class MigrationRefused(InvalidValue):
    """The claim, its volume or what has become of them is not such that it can be moved."""


class ClaimInUse(NotYet):
    """Pods refer to the claim; ``value`` names them."""


class MoveStalled(NotYet):
    """Something that Kubernetes does by itself has not come about in time; nothing is lost by that."""
