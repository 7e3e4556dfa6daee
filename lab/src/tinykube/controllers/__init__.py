"""What Kubernetes' own controller manager and scheduler do, as far as storage and worker pods need it.

Ordinary clients of a Kubernetes API: they know nothing of the server that answers. Decisions are pure
functions over the values of ``values``; the controllers only keep caches, ask, and write. Controllers for
jobs, and anything about volumes of kube-efs itself do not belong here.
"""
