"""The exit status of a command: 0 for success, 1 for a failure, 2 for wrong usage or invalid settings."""

from collections.abc import Callable
from typing import Final

from kube_efs.model.errors import InvalidSetting, KubeEfsError
from kube_efs.telemetry.uncaught import log_uncaught

FAILED: Final = 1
_WRONG_USAGE: Final = 2


def exit_status_of(command: Callable[[], int | None]) -> int:
    """Run the command. An error of kube-efs is printed as one line with a remedy, never as a traceback."""
    try:
        return command() or 0
    except KubeEfsError as error:
        _print(error)
        return _WRONG_USAGE if isinstance(error, InvalidSetting) else FAILED
    except Exception as error:  # noqa: BLE001 - Python would print its text with secrets
        log_uncaught(error)
        return FAILED


def _print(error: KubeEfsError) -> None:
    # rich needs 6 MB, and most processes end without an error.
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from kube_efs.model.visible import visible  # noqa: PLC0415

    text = Text.assemble(("error: ", "bold red"), (visible(str(error)), "red"))
    Console(stderr=True, soft_wrap=True).print(text)
