"""How the library of the logs is loaded by processes that start often, or stay."""

import importlib
import sys


def load_logging() -> None:
    """Load the library of the logs without rich, which it takes for tracebacks that no process here shows.

    That is 6 MB and a tenth of the start of each process that stays.
    """
    if "rich" not in sys.modules:
        # Which import takes for: not there.
        sys.modules["rich"] = None  # type: ignore[assignment]
        importlib.import_module("structlog")
        del sys.modules["rich"]
