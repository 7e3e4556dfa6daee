"""TLS-secured Amazon EFS volumes for Kubernetes and OpenShift."""
