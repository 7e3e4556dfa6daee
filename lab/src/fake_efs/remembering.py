"""A connection to the embedded AWS API that asks nothing twice while nothing has changed there."""

from collections.abc import Callable, Mapping
from typing import Any

from kube_efs.aws.connection import AwsConnection, AwsOptions, Service
from kube_efs.model.errors import AwsNotFound


class RememberingConnection(AwsConnection):
    """Remembers answers to calls, and that something is not there, until ``changes`` gives another number.

    With None from ``changes`` nothing is remembered. To ask at each connection of each probe what nobody has
    changed would keep a processor busy.
    """

    def __init__(self, options: AwsOptions, changes: Callable[[], int | None]) -> None:
        super().__init__(options)
        self._changes = changes
        self._changes_seen: int | None = None
        self._answers: dict[object, Mapping[str, Any] | AwsNotFound] = {}

    async def call(
        self, service: Service, operation: str, /, *, subject: object = "", **parameters: object
    ) -> Mapping[str, Any]:
        """The answer to this call since the last change; raises AwsError with ``subject`` as its value."""
        answers, question = self._answers_now(), (operation, *sorted(parameters.items()))
        if question not in answers:
            try:
                answers[question] = await super().call(service, operation, subject=subject, **parameters)
            except AwsNotFound as error:
                answers[question] = error
        answer = answers[question]
        if isinstance(answer, AwsNotFound):
            raise answer
        return answer

    def _answers_now(self) -> dict[object, Mapping[str, Any] | AwsNotFound]:
        """Where answers are kept; those to questions from before a change end elsewhere."""
        changes = self._changes()
        if changes is None or changes != self._changes_seen:
            self._changes_seen, self._answers = changes, {}
        return self._answers
