# A cluster on which a page before has installed kube-efs.
set -e
kubectl delete namespace openshift-efs-stunnel --ignore-not-found
