"""Amazon EFS as values: ids, file systems, directories, and the tunnel targets of the nodes.

Nothing here knows a claim or a volume of Kubernetes.
"""
