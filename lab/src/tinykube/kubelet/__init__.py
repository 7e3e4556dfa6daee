"""A kubelet for one node that runs pods as processes of this machine, each in a root file system of its own.

It needs no container runtime and pulls no image: a container is a command that this machine has. It is an
ordinary client of a Kubernetes API. Real isolation of tenants does not belong here, nor do networks of
pods: every pod uses the network of the machine, and a pod that runs as root is root.
"""
