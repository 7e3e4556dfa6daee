# OpenShift in manual mode with STS, and the namespaces that it has for drivers and for requests of credentials.
set -e
given=$(dirname "$0")
bash "$given/clean.sh"
bash "$given/openshift.sh"
kubectl create namespace openshift-cluster-csi-drivers
kubectl create namespace openshift-cloud-credential-operator
kubectl apply -f - <<YAML
apiVersion: operator.openshift.io/v1
kind: CloudCredential
metadata: {name: cluster}
spec: {credentialsMode: Manual}
---
apiVersion: config.openshift.io/v1
kind: Authentication
metadata: {name: cluster}
spec: {serviceAccountIssuer: https://oidc.example.com/prod-x7k2p}
YAML
