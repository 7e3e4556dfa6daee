# The kinds of the Prometheus operator.
set -e
define() {
  cat <<END
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: $2.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: $1, plural: $2}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
END
}
{
  define ServiceMonitor servicemonitors
  define PodMonitor podmonitors
  define PrometheusRule prometheusrules
} | kubectl apply -f -
kubectl wait crd --all --for=condition=Established --timeout=20s
