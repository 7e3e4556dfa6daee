# What aws-efs-operator leaves in a cluster, in the namespace openshift-operators, with what OLM has of it, and one SharedVolume.
set -e
scenarios=$(dirname "$0")/../../scenarios
kubectl create namespace openshift-operators
kubectl apply -f "$scenarios/shared-volume-crd.yaml" -f - <<END
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: subscriptions.operators.coreos.com}
spec:
  group: operators.coreos.com
  scope: Namespaced
  names: {kind: Subscription, plural: subscriptions, singular: subscription}
  versions:
  - {name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusterserviceversions.operators.coreos.com}
spec:
  group: operators.coreos.com
  scope: Namespaced
  names: {kind: ClusterServiceVersion, plural: clusterserviceversions, singular: clusterserviceversion, shortNames: [csv]}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
END
kubectl wait --for=condition=Established crd --all --timeout=20s
crd=sharedvolumes.aws-efs.managed.openshift.io
owner=$(kubectl get crd "$crd" -o 'jsonpath={.metadata.uid}')
sed "s/{namespace}/openshift-operators/; s/{owner}/$owner/" "$scenarios/community-operator.yaml" | kubectl apply -f -
kubectl apply -f - <<END
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
spec: {accessPointID: fsap-0123456789abcdef, fileSystemID: fs-1234cdef}
END
version=$(kubectl get csv -n openshift-operators aws-efs-operator.v0.0.8 -o 'jsonpath={.metadata.uid}')
kubectl patch deployment -n openshift-operators aws-efs-operator --type=merge -p '{"metadata": {"ownerReferences": [{
  "apiVersion": "operators.coreos.com/v1alpha1", "kind": "ClusterServiceVersion", "name": "aws-efs-operator.v0.0.8", "uid": "'"$version"'"}]}}'
