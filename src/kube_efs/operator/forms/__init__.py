"""Writes the assets for Helm, kustomize and OpenShift templates.

Only the form changes: objects and their defaults belong to ``operator.assets`` and ``operator.manifests``.
"""
