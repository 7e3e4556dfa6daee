"""One cluster for all the modules of this directory."""

from tests.scenarios.sharing import cluster, plane, tidy

__all__ = ["cluster", "plane", "tidy"]
