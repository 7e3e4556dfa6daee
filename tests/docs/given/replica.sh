# The replica has the files of the file system.
set -e
for one in "from $FILE_SYSTEM" "to $REPLICA"; do
  read -r name file_system <<< "$one"
  kubectl apply -f - <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: replication-$name}
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 1Gi}
  storageClassName: replication
  csi: {driver: efs.csi.aws.com, volumeHandle: $file_system}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $name}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: replication
  volumeName: replication-$name
  resources: {requests: {storage: 1Gi}}
YAML
done
kubectl apply -f - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: replication}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: copy
      image: busybox
      command: [sleep, infinity]
      volumeMounts: [{name: from, mountPath: /from}, {name: to, mountPath: /to}]
  volumes:
    - {name: from, persistentVolumeClaim: {claimName: from}}
    - {name: to, persistentVolumeClaim: {claimName: to}}
YAML
kubectl wait pod replication --for=condition=Ready --timeout=90s
kubectl exec replication -- cp -a /from/volumes /to/
kubectl delete pod replication
kubectl delete pvc from to
kubectl delete pv replication-from replication-to
