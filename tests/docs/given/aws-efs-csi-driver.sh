# The workloads of aws-efs-csi-driver's chart, and the binding of its controller.
set -e
bash "$(dirname "$0")/clean.sh"
kubectl apply -f - <<END
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: efs-csi-provisioner-binding}
subjects:
- {kind: ServiceAccount, name: efs-csi-controller-sa, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: efs-csi-external-provisioner-role}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: efs-csi-controller, namespace: kube-system}
spec:
  replicas: 2
  selector: {matchLabels: {app: efs-csi-controller}}
  template:
    metadata: {labels: {app: efs-csi-controller}}
    spec:
      containers:
      - {name: efs-plugin, image: registry.example.com/aws-efs-csi-driver:v3.4.1}
      - {name: csi-provisioner, image: registry.example.com/external-provisioner:v5.3.0}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: efs-csi-node, namespace: kube-system}
spec:
  selector: {matchLabels: {app: efs-csi-node}}
  template:
    metadata: {labels: {app: efs-csi-node}}
    spec:
      hostNetwork: true
      containers:
      - {name: efs-plugin, image: registry.example.com/aws-efs-csi-driver:v3.4.1}
      - {name: csi-driver-registrar, image: registry.example.com/node-driver-registrar:v2.15.0}
END
kubectl rollout status -n kube-system daemonset/efs-csi-node
