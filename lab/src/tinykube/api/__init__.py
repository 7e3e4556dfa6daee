"""A small Kubernetes API server: enough of the API for kubectl, lightkube and kopf, in memory.

Everything that a client can see of kube-apiserver belongs here: discovery, CRUD, watches, patches,
server-side apply, validation, defaulting, admission, tables, custom resources. What controllers and the
kubelet do with the objects does not: they are clients like all others. ``ApiServer`` is the public face.
"""

from tinykube.api.pods import PodLogs
from tinykube.api.server import ApiServer

__all__ = ["ApiServer", "PodLogs"]
