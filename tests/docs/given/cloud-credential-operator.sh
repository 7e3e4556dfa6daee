# What OpenShift's Cloud Credential Operator answers to a CredentialsRequest with a role.
set -e
request=(kubectl get credentialsrequest -n openshift-cloud-credential-operator openshift-aws-efs-csi-driver)
field() { "${request[@]}" -o "jsonpath={.spec.$1}"; }
kubectl create secret generic "$(field secretRef.name)" -n "$(field secretRef.namespace)" --from-literal=credentials="[default]
sts_regional_endpoints = regional
role_arn = $(field providerSpec.stsIAMRoleARN)
web_identity_token_file = $(field cloudTokenPath)
region = us-east-1"
"${request[@]}" -o name | xargs kubectl patch -n openshift-cloud-credential-operator --type=merge -p '{"status": {"provisioned": true}}'
