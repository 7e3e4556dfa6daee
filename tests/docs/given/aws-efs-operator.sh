# What aws-efs-operator leaves in a cluster, in the namespace openshift-operators, with what OLM has of it, and one SharedVolume.
set -e
given=$(dirname "$0")
bash "$given/clean.sh"
bash "$given/openshift.sh"
scenarios=$given/../../scenarios
kubectl create namespace openshift-operators
kubectl apply -f "$scenarios/shared-volume-crd.yaml"
kubectl wait crd --all --for=condition=Established --timeout=20s
crd=sharedvolumes.aws-efs.managed.openshift.io
owner=$(kubectl get crd "$crd" -o 'jsonpath={.metadata.uid}')
sed "s/{namespace}/openshift-operators/; s/{owner}/$owner/" "$scenarios/community-operator.yaml" | kubectl apply -f -
kubectl apply -f - <<YAML
apiVersion: operators.coreos.com/v1alpha1
kind: Subscription
metadata:
  name: aws-efs-operator
  namespace: openshift-operators
  labels: {operators.coreos.com/aws-efs-operator.openshift-operators: ""}
spec: {name: aws-efs-operator, channel: stable, source: community-operators}
---
apiVersion: operators.coreos.com/v1alpha1
kind: ClusterServiceVersion
metadata:
  name: aws-efs-operator.v0.0.8
  namespace: openshift-operators
  labels: {operators.coreos.com/aws-efs-operator.openshift-operators: ""}
spec: {version: 0.0.8}
---
apiVersion: aws-efs.managed.openshift.io/v1alpha1
kind: SharedVolume
metadata: {name: sv1, namespace: default}
spec: {accessPointID: fsap-0123456789abcdef, fileSystemID: $FILE_SYSTEM}
YAML
version=$(kubectl get csv -n openshift-operators aws-efs-operator.v0.0.8 -o 'jsonpath={.metadata.uid}')
kubectl patch deployment -n openshift-operators aws-efs-operator --type=merge -p '{"metadata": {"ownerReferences": [{
  "apiVersion": "operators.coreos.com/v1alpha1", "kind": "ClusterServiceVersion", "name": "aws-efs-operator.v0.0.8", "uid": "'"$version"'"}]}}'
