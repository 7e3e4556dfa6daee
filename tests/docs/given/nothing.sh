# The cluster as kube-efs up --empty makes it, whatever sessions before have done.
set -e
bash "$(dirname "$0")/clean.sh"
kubectl delete crd --all
