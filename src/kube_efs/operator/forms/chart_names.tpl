{{- define "kube-efs.all-names" -}}
ALL_NAMES
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
{{- if and (not $found) (eq $namespace "OLD_NAMESPACE") }}
{{- $found = "OLD_NAMES" }}
{{- else if and (not $found) (ne $namespace "NEW_NAMESPACE") (not (lookup "v1" "Namespace" "" "kube-system")) }}
{{- fail "names: Helm cannot read the cluster; set names: NEW_NAMES for a new installation, names: OLD_NAMES for one of an earlier version" }}
{{- end }}
{{- $found | default "NEW_NAMES" }}
{{- end -}}
