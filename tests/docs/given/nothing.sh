# The cluster as kube-efs up --empty makes it, whatever sessions before have done.
set -e
bash "$(dirname "$0")/clean.sh"
kubectl delete crd --all
kubectl delete deployment --all --cascade=foreground
kubectl delete -f "$(dirname "$0")/../../../deploy/efs-provisioner/rbac.yaml" --ignore-not-found
kubectl delete configmap/efs-provisioner secret/aws-credentials serviceaccount/efs-provisioner --ignore-not-found
kubectl delete storageclass --all
kubectl delete pvc --all --wait=false
kubectl get pv -o name | while read -r volume; do
  # Who would take the finalizers away has gone.
  kubectl patch "$volume" --type=merge -p '{"metadata": {"finalizers": []}}'
  kubectl delete "$volume" --ignore-not-found
done
