"""Installation: the objects that kube-efs consists of in a cluster.

``assets`` holds them as YAML; ``manifests`` fills them in. What a person applies by hand and what the
operator of ``ClusterCSIDriver`` keeps in place are the same objects. What the processes in them do is not
decided here.
"""
