# kube-efs is installed.
set -e
bash "$(dirname "$0")/clean.sh"
kube-efs render --for kubernetes --csi | kubectl apply -f -
kubectl rollout status -n kube-efs deployment/kube-efs-controller
