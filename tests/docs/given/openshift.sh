# OpenShift's kinds, and those of OLM and of the Prometheus operator, which it has.
set -e
kubectl get crd securitycontextconstraints.security.openshift.io -o name 2>/dev/null && exit
. "$(dirname "$0")/kinds.sh"
{ define_openshift; define_olm; define_monitoring; } | bring
