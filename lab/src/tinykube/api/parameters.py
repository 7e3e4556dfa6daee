"""The query parameters of a request, read with Kubernetes' rules."""

from collections.abc import Mapping

from tinykube.objects.statuses import bad_request

_FALSE = frozenset({"0", "false"})


class Parameters:
    """Query parameters by name; one that is missing is empty, as for kube-apiserver."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str:
        """The parameter as it is."""
        return self._values.get(name, "")

    def flag(self, name: str) -> bool:
        """The parameter as a truth value: whatever is there is true, but for 0 and false."""
        return name in self._values and self.text(name).lower() not in _FALSE

    def number(self, name: str) -> int | None:
        """The parameter as a whole number; None when empty. Raises 400."""
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError as error:
            raise bad_request(f"{name}={text} is not a number") from error

    def resource_version(self) -> int | None:
        """``resourceVersion``: None when unset, 0 for any version. Raises 400."""
        text = self.text("resourceVersion")
        if not text:
            return None
        if not text.isascii() or not text.isdigit():
            raise bad_request(f"resourceVersion={text} is not a version")
        return int(text)
