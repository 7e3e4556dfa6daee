# What aws-efs-csi-driver-operator leaves on OpenShift, with what OLM has of it, and a pod that uses a volume of its driver.
set -e
given=$(dirname "$0")
bash "$given/clean.sh"
bash "$given/openshift.sh"
namespace=openshift-cluster-csi-drivers
kubectl create namespace $namespace
kubectl create serviceaccount -n $namespace aws-efs-csi-driver-operator
kubectl apply -f - <<YAML
apiVersion: operators.coreos.com/v1alpha1
kind: Subscription
metadata:
  name: aws-efs-csi-driver-operator
  namespace: $namespace
  labels: {operators.coreos.com/aws-efs-csi-driver-operator.$namespace: ""}
spec: {name: aws-efs-csi-driver-operator, channel: stable, source: redhat-operators}
---
apiVersion: operators.coreos.com/v1alpha1
kind: ClusterServiceVersion
metadata:
  name: aws-efs-csi-driver-operator.v4.16.0
  namespace: $namespace
  labels: {operators.coreos.com/aws-efs-csi-driver-operator.$namespace: ""}
spec: {version: 4.16.0}
---
apiVersion: operator.openshift.io/v1
kind: CloudCredential
metadata: {name: cluster}
spec: {credentialsMode: Manual}
---
apiVersion: operator.openshift.io/v1
kind: ClusterCSIDriver
metadata:
  name: efs.csi.aws.com
  finalizers:
  - aws-efs-csi-driver-operator.operator.openshift.io/AWSEFSDriverControllerServiceController
  - aws-efs-csi-driver-operator.operator.openshift.io/AWSEFSDriverNodeServiceController
  - aws-efs-csi-driver-operator.operator.openshift.io/CSIStaticResourceController
spec: {managementState: Managed, logLevel: Normal, operatorLogLevel: Normal}
YAML
version=$(kubectl get csv -n $namespace aws-efs-csi-driver-operator.v4.16.0 -o 'jsonpath={.metadata.uid}')
kubectl apply -f - <<YAML
apiVersion: apps/v1
kind: Deployment
metadata:
  name: aws-efs-csi-driver-operator
  namespace: $namespace
  ownerReferences:
  - apiVersion: operators.coreos.com/v1alpha1
    kind: ClusterServiceVersion
    name: aws-efs-csi-driver-operator.v4.16.0
    uid: $version
spec:
  selector: {matchLabels: {name: aws-efs-csi-driver-operator}}
  template:
    metadata: {labels: {name: aws-efs-csi-driver-operator}}
    spec:
      serviceAccountName: aws-efs-csi-driver-operator
      containers: [{name: operator, image: "registry.example.com/ose-aws-efs-csi-driver-operator:v4.16"}]
YAML
sed "s/{namespace}/$namespace/" "$given/../../scenarios/supported-operator.yaml" | kubectl apply -f -
kubectl rollout status -n $namespace daemonset/aws-efs-csi-driver-node
kubectl apply -f - <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: older}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: older
  csi: {driver: efs.csi.aws.com, volumeHandle: $FILE_SYSTEM}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: older}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: older
  resources: {requests: {storage: 1Gi}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: busybox
        command: [sh, -c, "echo hello > /data/greeting; exec sleep infinity"]
        volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: older}}]
YAML
kubectl wait deployment web --for=jsonpath='{.status.replicas}'=1 --timeout=20s
kubectl wait pod -l app=web --for=condition=PodScheduled --timeout=20s
