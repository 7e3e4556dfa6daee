"""Every environment variable of the long-running processes, with its default, range and meaning.

Each process has a class, with shared base classes. ``scripts/settings_table.py`` generates
``docs/settings.md`` from this package. Variables without the prefix ``KUBE_EFS_`` have the names of
openshift-efs-stunnel, efs-provisioner, the tools of AWS, and Kubernetes. An empty variable counts as not set.
Options of single commands belong to the command line.
"""
