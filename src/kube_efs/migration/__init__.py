"""Migrates volumes of the two NFS provisioners to volumes of the CSI driver, and back: kube-efs migrate.

Moves claims and volume objects only, through the Kubernetes API; data stays where it is and no process of
kube-efs has to run. How a claim comes from one volume to the other is a pure function of what the API says
at that moment (``steps.py``), so that it can be interrupted anywhere. The command line selects the cluster,
and creating and removing data belongs to ``provisioning``.
"""
