"""What the controllers and the kubelet need of a Kubernetes client besides lightkube's own."""
