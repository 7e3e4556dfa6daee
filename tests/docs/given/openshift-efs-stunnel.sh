# What openshift-efs-stunnel leaves on OpenShift.
set -e
given=$(dirname "$0")
bash "$given/clean.sh"
bash "$given/openshift.sh"
kubectl create namespace openshift-efs-stunnel
for account in efs-manager efs-stunnel efs-worker; do
  kubectl create serviceaccount -n openshift-efs-stunnel $account
done
kubectl apply -f "$given/../../conformance/openshift-efs-stunnel.yaml"
kubectl rollout status -n openshift-efs-stunnel daemonset/efs-stunnel
