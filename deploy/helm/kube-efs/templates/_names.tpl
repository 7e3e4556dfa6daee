{{- define "kube-efs.all-names" -}}
{
  "kube-efs": {
    "name_set": "kube-efs",
    "controller": "kube-efs-controller",
    "controller_account": "kube-efs-controller",
    "tunnel": "kube-efs-tunnel",
    "tunnel_account": "kube-efs-tunnel",
    "node": "kube-efs-node",
    "node_account": "kube-efs-node",
    "worker_account": "kube-efs-worker",
    "config_map": "kube-efs-tunnels",
    "tunnel_status": "kube-efs-tunnel-status",
    "older_config_map": "efs-stunnel",
    "storage_class": "kube-efs"
  },
  "openshift-efs-stunnel": {
    "name_set": "openshift-efs-stunnel",
    "controller": "efs-manager",
    "controller_account": "efs-manager",
    "tunnel": "efs-stunnel",
    "tunnel_account": "efs-stunnel",
    "node": "efs-csi-node",
    "node_account": "efs-csi-node",
    "worker_account": "efs-worker",
    "config_map": "efs-stunnel",
    "tunnel_status": "efs-stunnel-status",
    "older_config_map": "",
    "storage_class": "efs-stunnel"
  },
  "aws-efs-csi-driver": {
    "name_set": "aws-efs-csi-driver",
    "controller": "efs-csi-controller",
    "controller_account": "efs-csi-controller-sa",
    "tunnel": "efs-csi-tunnel",
    "tunnel_account": "efs-csi-node-sa",
    "node": "efs-csi-node",
    "node_account": "efs-csi-mounter-sa",
    "worker_account": "efs-csi-worker-sa",
    "config_map": "efs-csi-tunnels",
    "tunnel_status": "efs-csi-tunnel-status",
    "older_config_map": "efs-stunnel",
    "storage_class": "efs-csi-tunnel"
  }
}
{{- end -}}

{{- /* The result becomes the value, because each lookup is a request to the API server. */}}
{{- define "kube-efs.names" -}}
{{- $all := include "kube-efs.all-names" . | fromJson }}
{{- if not .Values.names }}
{{- $_ := set .Values "names" (include "kube-efs.names-in-use" . | trim) }}
{{- end }}
{{- get $all .Values.names | toJson -}}
{{- end -}}

{{- /*
A release keeps the names of the tunnels that its namespace has, else those of the ConfigMap with the ports, as
the operator does. Where Helm cannot read the cluster, only the namespace can tell. With other names, Helm would
delete the objects of a release of an earlier version, and so end all tunnels at once.
*/}}
{{- define "kube-efs.names-in-use" -}}
{{- $namespace := .Release.Namespace }}
{{- $found := "" }}
{{- range $set, $names := (include "kube-efs.all-names" . | fromJson) }}
{{- if and (not $found) (lookup "apps/v1" "DaemonSet" $namespace $names.tunnel) }}
{{- $found = $set }}
{{- end }}
{{- end }}
{{- range $set, $names := (include "kube-efs.all-names" . | fromJson) }}
{{- if and (not $found) (lookup "v1" "ConfigMap" $namespace $names.config_map) }}
{{- $found = $set }}
{{- end }}
{{- end }}
{{- if and (not $found) (eq $namespace "openshift-efs-stunnel") }}
{{- $found = "openshift-efs-stunnel" }}
{{- else if and (not $found) (ne $namespace "kube-efs") (not (lookup "v1" "Namespace" "" "kube-system")) }}
{{- fail "names: Helm cannot read the cluster; set names: kube-efs for a new installation, names: openshift-efs-stunnel for one of an earlier version" }}
{{- end }}
{{- $found | default "kube-efs" }}
{{- end -}}
