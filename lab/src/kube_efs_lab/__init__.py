"""The lab: kube-efs on a small cluster (``tinykube``) and a small EFS (``fake_efs``) on this machine.

For trying kube-efs out and for its tests; it says so itself. kube-efs imports nothing of the lab, and is put
on it by its ordinary settings only: it cannot tell it from a real cluster and a real account.
"""
