"""Installation: the objects that kube-efs consists of in a cluster, and what keeps them there.

``assets`` holds them as YAML; ``manifests`` fills them in. What a user applies manually and what the
operator of ``ClusterCSIDriver`` keeps in place are the same objects. ``file_systems`` makes what a cluster
needs in AWS and removes what it owns there. What the installed processes do is not decided here.
"""
