"""Kinds that CustomResourceDefinitions add while the server runs: their schemas, defaults and columns."""
