# Sourced: definitions of kinds that take anything.

# define GROUP VERSION KIND SCOPE [PLURAL]
define() {
  local plural=${5:-${3,,}s}
  cat <<YAML
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: $plural.$1
  annotations: {api-approved.kubernetes.io: "unapproved, a test"}
spec:
  group: $1
  scope: $4
  names: {kind: $3, plural: $plural, singular: ${3,,}}
  versions:
  - name: $2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
YAML
}

# OLM's, as far as people use them by hand.
define_olm() {
  define operators.coreos.com v1alpha1 Subscription Namespaced
  define operators.coreos.com v1alpha1 ClusterServiceVersion Namespaced | sed 's/singular:/shortNames: [csv], singular:/'
}

define_monitoring() {
  define monitoring.coreos.com v1 ServiceMonitor Namespaced
  define monitoring.coreos.com v1 PodMonitor Namespaced
  define monitoring.coreos.com v1 PrometheusRule Namespaced
}

# OpenShift's own, as far as kube-efs looks for them.
define_openshift() {
  local tests
  tests=$(dirname "${BASH_SOURCE[0]}")/../..
  cat "$tests/conformance/security-context-constraints-crd.yaml"
  echo ---
  cat "$tests/../src/kube_efs/operator/assets/cluster-csi-driver-crd.yaml"
  echo ---
  define cloudcredential.openshift.io v1 CredentialsRequest Namespaced
  define operator.openshift.io v1 CloudCredential Cluster
  define config.openshift.io v1 Infrastructure Cluster
  define config.openshift.io v1 Proxy Cluster proxies
  define config.openshift.io v1 APIServer Cluster
  define config.openshift.io v1 Authentication Cluster
}

# The kinds that are defined on standard input are there.
bring() {
  kubectl apply -f -
  kubectl wait crd --all --for=condition=Established --timeout=20s
}
