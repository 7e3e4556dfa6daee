# efs-provisioner in the place of the Deployment that is there, with the lock by which it leads; its image does nothing here.
set -e
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
