# efs-provisioner with a volume, and its lock; its image does nothing here. The reader has edited the manifests that follow it.
set -e
cp deploy/efs-provisioner/*.yaml .
sed -i "s/fs-47a2c22e/$FILE_SYSTEM/; s/us-west-2/us-east-1/; s| path: /persistentvolumes| path: /|" deployment.yaml
sed -i '/KUBE_EFS_DIRECTORY_PATH/{n; s|/persistentvolumes|/|}' deployment.yaml
kubectl create configmap efs-provisioner --from-literal=file.system.id=$FILE_SYSTEM \
  --from-literal=aws.region=us-east-1 --from-literal=provisioner.name=example.com/aws-efs
kubectl create -f rbac.yaml -f deployment.yaml -f class.yaml -f claim.yaml
kubectl wait pvc efs --for=jsonpath='{.status.phase}'=Bound --timeout=60s
kubectl scale deployment efs-provisioner --replicas=0
kubectl wait pod -l app=efs-provisioner --for=delete --timeout=30s
kubectl set image deployment/efs-provisioner efs-provisioner=registry.example.com/efs-provisioner:v2.4.0
kubectl patch deployment efs-provisioner --type=json -p '[{"op": "remove", "path": "/spec/template/spec/containers/0/args"}]'
kubectl scale deployment efs-provisioner --replicas=1
kubectl apply -f - <<END
apiVersion: v1
kind: Endpoints
metadata: {name: example.com-aws-efs, namespace: default}
END
