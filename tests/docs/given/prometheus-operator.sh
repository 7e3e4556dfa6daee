# The kinds of the Prometheus operator.
set -e
for plural in servicemonitors podmonitors prometheusrules; do
  case $plural in
    servicemonitors) kind=ServiceMonitor ;;
    podmonitors) kind=PodMonitor ;;
    prometheusrules) kind=PrometheusRule ;;
  esac
  kubectl apply -f - <<END
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: $plural.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: $kind, plural: $plural}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
END
done
kubectl wait crd --all --for=condition=Established --timeout=20s
