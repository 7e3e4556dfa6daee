"""What ``kube-efs render`` prints in other forms, of the same assets: for Helm, kustomize and OpenShift."""
