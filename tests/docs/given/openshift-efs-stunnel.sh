# What openshift-efs-stunnel leaves in a cluster; a page before has perhaps installed kube-efs there.
set -e
kubectl delete namespace openshift-efs-stunnel --ignore-not-found
kubectl create namespace openshift-efs-stunnel
for account in efs-manager efs-stunnel efs-worker; do
  kubectl create serviceaccount -n openshift-efs-stunnel $account
done
kubectl apply -f "$(dirname "$0")/../../conformance/openshift-efs-stunnel.yaml"
kubectl rollout status -n openshift-efs-stunnel daemonset/efs-stunnel
