"""Writes the assets for Helm, kustomize and OpenShift templates."""
