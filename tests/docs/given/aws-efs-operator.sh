# What aws-efs-operator leaves in a cluster, in the namespace openshift-operators, and one SharedVolume.
set -e
scenarios=$(dirname "$0")/../../scenarios
kubectl create namespace openshift-operators
kubectl apply -f "$scenarios/shared-volume-crd.yaml"
crd=sharedvolumes.aws-efs.managed.openshift.io
kubectl wait --for=condition=Established "crd/$crd"
owner=$(kubectl get crd "$crd" -o 'jsonpath={.metadata.uid}')
sed "s/{namespace}/openshift-operators/; s/{owner}/$owner/" "$scenarios/community-operator.yaml" | kubectl apply -f -
kubectl apply -f - <<END
apiVersion: aws-efs.managed.openshift.io/v1alpha1
kind: SharedVolume
metadata: {name: sv1, namespace: default}
spec: {accessPointID: fsap-0123456789abcdef, fileSystemID: fs-1234cdef}
END
