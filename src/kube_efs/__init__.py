"""TLS-secured Amazon EFS volumes for Kubernetes and OpenShift.

``docs/design.md`` lists the packages, each of which imports only from those below it. The embedded cluster is
another distribution, ``kube_efs_lab``, and nothing here imports it.
"""
