"""Scenarios of directory volumes that share one cluster: a package, so that pytest ends it with the last."""
