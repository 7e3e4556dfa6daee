"""Events as texts, instead of in a cluster."""

from kube_efs.kube.events import EventType, Subject


class Events:
    """Records the events that would be published."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def publish(
        self, subject: Subject, kind: EventType, reason: str, message: str, *, ends: str = ""
    ) -> None:
        assert (subject.kind, subject.uid) == ("SharedVolume", "u")
        self.told.append(f"{kind} {reason} {message}")
