"""Installation: renders the objects of kube-efs, and applies them as a ``ClusterCSIDriver`` specifies.

``assets`` contains the objects as YAML, and ``manifests`` renders them. A user who applies them manually and
the operator use the same objects. ``forms`` writes them for Helm, kustomize and OpenShift templates, and
``bundle`` for OLM. ``file_systems`` creates and removes the resources of a cluster in AWS. The functions of
the installed processes do not belong here.
"""
