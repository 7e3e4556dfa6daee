"""One cluster for all modules of this directory."""

from tests.scenarios.sharing import cluster, plane, tidy

__all__ = ["cluster", "plane", "tidy"]
