# Removes by force what sessions before have installed, in whatever state it is.
set -e
kubectl delete deployment web --ignore-not-found
# A worker pod can only end while its node has the driver.
for namespace in kube-efs openshift-efs-stunnel openshift-operators openshift-cluster-csi-drivers; do
  kubectl delete deployment --all -n $namespace
  kubectl delete pod -l component=efs-worker -n $namespace
done
kubectl delete namespace kube-efs openshift-efs-stunnel openshift-operators openshift-cluster-csi-drivers --ignore-not-found
for kind in clustercsidrivers.operator.openshift.io sharedvolumes.aws-efs.managed.openshift.io; do
  if kubectl get crd $kind -o name 2>/dev/null; then
    # Who would take the finalizers away has gone with its namespace.
    kubectl get $kind -A -o 'jsonpath={range .items[*]}{.metadata.name}{" "}{.metadata.namespace}{"\n"}{end}' |
      while read -r name namespace; do
        kubectl patch $kind "$name" ${namespace:+-n "$namespace"} --type=merge -p '{"metadata": {"finalizers": []}}'
        kubectl delete $kind "$name" ${namespace:+-n "$namespace"}
      done
  fi
done
