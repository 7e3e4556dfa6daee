"""The tunnels of one node: one stunnel process, its configuration, supervision and health.

Reads the tunnel targets, decides which mount target serves each, and keeps stunnel doing that. Knows
nothing of claims or volumes.
"""
