"""A small Kubernetes on this machine: an API server, the controllers of a cluster, and a kubelet.

It is for tests and for trying things out, serves loopback only, and says so itself. What is particular to
kube-efs or to EFS does not belong here. It is frozen: a kind or a verb enters it only when a page, the demo,
an example of an older system or a test of kube-efs fails without it.
"""
