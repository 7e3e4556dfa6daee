"""Everything that the doctor asks, of the Kubernetes API, AWS and this machine; nothing is changed."""
