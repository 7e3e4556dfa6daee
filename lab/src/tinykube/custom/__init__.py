"""Kinds that CustomResourceDefinitions add while the server runs: their schemas, defaults and columns.

Rules of built-in kinds belong to ``kinds``, and what all objects have in common to ``objects``.
"""
