"""The embedded default: a small cluster and a small EFS on this machine's loopback interface.

For trying kube-efs out and for its tests; it says so itself. Nothing outside this package but the command
line imports it: the rest of kube-efs cannot tell it from a real cluster and a real account.
"""
