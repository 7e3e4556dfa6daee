"""What the controllers and the kubelet need of a Kubernetes client besides lightkube's own.

It can talk to any API server. What only one controller needs belongs to that controller, and nothing here
imports the server.
"""
