# Two of the classes that kube-efs up makes.
set -e
kubectl apply -f - <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: kube-efs}
provisioner: gnuthought.com/efs-stunnel
parameters: {default_file_system_id: auto}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: efs-sc-1}
provisioner: efs.csi.aws.com
parameters: {provisioningMode: efs-ap, fileSystemId: $FILE_SYSTEM, directoryPerms: "700"}
YAML
