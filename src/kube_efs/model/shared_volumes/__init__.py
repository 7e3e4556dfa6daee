"""The custom resource SharedVolume: its values, its limits, and the plan for its claim and volume.

The steps of a plan need the Kubernetes API, so they belong to ``provisioning.shared_volumes``.
"""
