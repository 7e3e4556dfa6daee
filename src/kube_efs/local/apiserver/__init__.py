"""A small Kubernetes API server: enough of the API for kubectl, lightkube and kopf, over one in-memory store."""
