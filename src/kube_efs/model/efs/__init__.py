"""Amazon EFS as values: ids, file systems, directories, and the tunnel targets of the nodes.

Claims and volumes of Kubernetes do not belong here.
"""
