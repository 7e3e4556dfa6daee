"""The tunnels of one node: one stunnel process, its configuration, supervision and health.

Reads the tunnel targets and answers those who ask for tunnels on demand (``client`` is their side of it),
decides which mount target serves each, and keeps stunnel doing that. Knows nothing of claims or volumes.
"""
