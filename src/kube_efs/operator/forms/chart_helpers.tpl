{{- define "kube-efs.image" -}}
{{- with .Values.image.digest -}}
{{ $.Values.image.repository }}@{{ . }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "kube-efs.pullSecrets" -}}
{{- $secrets := .Values.image.pullSecrets -}}
{{- range .Values.imagePullSecrets }}{{ $secrets = append $secrets (dict "name" .) }}{{ end -}}
{{- $secrets | toJson -}}
{{- end -}}

{{- define "kube-efs.kubeletDirectory" -}}
{{- .Values.node.kubeletPath | default .Values.csi.kubeletDirectory | trimSuffix "/" -}}
{{- end -}}

{{/* Labels in addition to those that select the pods, which win. */}}
{{- define "kube-efs.labels" -}}
{{- $labels := dict -}}
{{- with (index . 0).Values.nameOverride }}{{ $_ := set $labels "app.kubernetes.io/name" . }}{{ end -}}
{{- merge $labels (index . 1) | toJson -}}
{{- end -}}

{{/* The references of each namespace together, because they are one role. */}}
{{- define "kube-efs.classReferences" -}}
{{- $namespaces := list -}}
{{- range .Values.csi.classReferences }}{{ $namespaces = append $namespaces .namespace }}{{ end -}}
{{- $references := list -}}
{{- range $namespace := uniq $namespaces -}}
{{- $secrets := list -}}
{{- $configMaps := list -}}
{{- range $.Values.csi.classReferences -}}
{{- if eq .namespace $namespace -}}
{{- $secrets = concat $secrets (.secrets | default list) | uniq -}}
{{- $configMaps = concat $configMaps (.configMaps | default list) | uniq -}}
{{- end -}}
{{- end -}}
{{- $one := dict "namespace" $namespace "secrets" $secrets "configMaps" $configMaps -}}
{{- $references = append $references $one -}}
{{- end -}}
{{- $references | toJson -}}
{{- end -}}

{{/* A probe of the chart of the AWS driver names the port healthz; nodes serve it on one address only. */}}
{{- define "kube-efs.probe" -}}
{{- $probe := deepCopy (index . 0) -}}
{{- $host := index . 1 -}}
{{- with $probe.httpGet -}}
{{- if eq (toString .port) "healthz" }}{{ $_ := set . "port" "health" }}{{ end -}}
{{- if and $host (not .host) }}{{ $_ := set . "host" $host }}{{ end -}}
{{- end -}}
{{- $probe | toJson -}}
{{- end -}}

{{/* Whole seconds of a duration such as 15s or 2m. */}}
{{- define "kube-efs.seconds" -}}
{{- if hasSuffix "m" . }}{{ mul 60 (trimSuffix "m" . | int) }}{{ else }}{{ trimSuffix "s" . }}{{ end -}}
{{- end -}}

{{/* Kubernetes accepts nodes of any term, so each has the default expressions. An empty term accepts none. */}}
{{- define "kube-efs.nodeAffinity" -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $given := deepCopy (index . 0) -}}
{{- $usual := (index (get (index . 1) $required).nodeSelectorTerms 0).matchExpressions -}}
{{- range (get $given $required | default dict).nodeSelectorTerms -}}
{{- if or .matchExpressions .matchFields -}}
{{- $_ := set . "matchExpressions" (concat (.matchExpressions | default list) $usual) -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite (index . 1) $given | toJson -}}
{{- end -}}

{{/* The default constraints of the pods of the controller, for other topologies. */}}
{{- define "kube-efs.topologySpreadConstraints" -}}
{{- $constraints := list -}}
{{- range (index . 0).Values.controller.topologySpreadConstraints -}}
{{- $constraints = append $constraints (merge (dict "labelSelector" (dict "matchLabels" (index $ 1))) .) -}}
{{- end -}}
{{- $constraints | toJson -}}
{{- end -}}

{{- define "kube-efs.controller.podAnnotations" -}}
{{- $annotations := dict -}}
{{- if and .Values.controller.enableMetrics .Values.controller.enablePrometheusAnnotations -}}
{{- $_ := set $annotations "prometheus.io/scrape" "true" -}}
{{- $_ := set $annotations "prometheus.io/port" (toString .Values.controller.healthPort) -}}
{{- end -}}
{{- merge (deepCopy .Values.controller.podAnnotations) $annotations | toJson -}}
{{- end -}}

{{- define "kube-efs.hostAliases" -}}
{{- $aliases := list -}}
{{- range $id, $at := .Values.node.hostAliases -}}
{{- $name := printf "%s.efs.%s.amazonaws.com" $id $at.region -}}
{{- $aliases = append $aliases (dict "ip" $at.ip "hostnames" (list $name)) -}}
{{- end -}}
{{- $aliases | toJson -}}
{{- end -}}

{{/* Parameters of a StorageClass are text; YAML reads true as a switch. */}}
{{- define "kube-efs.parameters" -}}
{{- $parameters := dict -}}
{{- range $name, $value := . }}{{ $_ := set $parameters $name (toString $value) }}{{ end -}}
{{- $parameters | toJson -}}
{{- end -}}

{{/* Variables as Kubernetes lists them, from a mapping or such a list. */}}
{{- define "kube-efs.variables" -}}
{{- $variables := list -}}
{{- if kindIs "map" . -}}
{{- range $name, $value := . -}}
{{- $variables = append $variables (dict "name" $name "value" $value) -}}
{{- end -}}
{{- else -}}
{{- range . }}{{ $variables = append $variables . }}{{ end -}}
{{- end -}}
{{- $variables | toJson -}}
{{- end -}}

{{/* The variables of the values first, then those that other values give and that are not among them. */}}
{{- define "kube-efs.merged" -}}
{{- $variables := index . 0 -}}
{{- $known := list -}}
{{- range $variables }}{{ $known = append $known .name }}{{ end -}}
{{- range index . 1 -}}
{{- if not (has .name $known) }}{{ $variables = append $variables . }}{{ end -}}
{{- end -}}
{{- $variables | toJson -}}
{{- end -}}

{{- define "kube-efs.controller.env" -}}
{{- $given := dict -}}
{{- if or .Values.debugLogs (ge (int $.Values.controller.logLevel) 5) }}{{ $_ := set $given "LOGGING_LEVEL" "DEBUG" }}{{ end -}}
{{- if $.Values.controller.regionalStsEndpoints }}{{ $_ := set $given "AWS_STS_REGIONAL_ENDPOINTS" "regional" }}{{ end -}}
{{- if $.Values.controller.enableMetrics }}{{ $_ := set $given "KUBE_EFS_AWS_DRIVER_METRICS" "true" }}{{ end -}}
{{- if $.Values.controller.deleteAccessPointRootDir -}}
{{- $_ := set $given "KUBE_EFS_DELETE_ACCESS_POINT_ROOT_DIR" "true" -}}
{{- end -}}
{{- if $.Values.controller.tags -}}
{{- $tags := list -}}
{{- range $key, $value := $.Values.controller.tags }}{{ $tags = append $tags (printf "%s:%s" $key $value) }}{{ end -}}
{{- $_ := set $given "KUBE_EFS_ACCESS_POINT_TAGS" (join " " $tags) -}}
{{- end -}}
{{- with $.Values.controller.leaderElectionLeaseDuration -}}
{{- $_ := set $given "KUBE_EFS_LEASE_DURATION_SECONDS" (include "kube-efs.seconds" .) -}}
{{- end -}}
{{- with $.Values.controller.leaderElectionRenewDeadline -}}
{{- $_ := set $given "KUBE_EFS_LEASE_RENEW_SECONDS" (include "kube-efs.seconds" .) -}}
{{- end -}}
{{- if ne (int $.Values.controller.healthPort) 9810 -}}
{{- $_ := set $given "KUBE_EFS_HEALTH_PORT" (toString $.Values.controller.healthPort) -}}
{{- end -}}
{{- $own := include "kube-efs.variables" $.Values.controller.env | fromJsonArray -}}
{{- include "kube-efs.merged" (list $own (include "kube-efs.variables" $given | fromJsonArray)) -}}
{{- end -}}

{{/* The node pod of the AWS driver also contains its tunnels, so variables for it as a list are for both. */}}
{{- define "kube-efs.tunnel.env" -}}
{{- $given := dict -}}
{{- if or .Values.debugLogs (ge (int .Values.node.logLevel) 5) -}}
{{- $_ := set $given "LOGGING_LEVEL" "DEBUG" -}}
{{- end -}}
{{- with .Values.portRangeUpperBound -}}
{{- if ne (int .) 21049 }}{{ $_ := set $given "KUBE_EFS_TUNNEL_PORTS" (printf "22049-%d" (int .)) }}{{ end -}}
{{- end -}}
{{- if ne (int .Values.node.healthPort) 9812 -}}
{{- $_ := set $given "KUBE_EFS_DRIVER_HEALTH_PORT" (toString .Values.node.healthPort) -}}
{{- end -}}
{{- $own := include "kube-efs.variables" .Values.tunnel.env | fromJsonArray -}}
{{- if not (kindIs "map" .Values.node.env) -}}
{{- $listed := include "kube-efs.variables" .Values.node.env | fromJsonArray -}}
{{- $own = include "kube-efs.merged" (list $own $listed) | fromJsonArray -}}
{{- end -}}
{{- include "kube-efs.merged" (list $own (include "kube-efs.variables" $given | fromJsonArray)) -}}
{{- end -}}

{{- define "kube-efs.node.env" -}}
{{- $given := dict -}}
{{- if or .Values.debugLogs (ge (int $.Values.node.logLevel) 5) }}{{ $_ := set $given "LOGGING_LEVEL" "DEBUG" }}{{ end -}}
{{- if $.Values.node.volMetricsOptIn -}}
{{- $_ := set $given "KUBE_EFS_VOLUME_METRICS" "true" -}}
{{- $_ := set $given "KUBE_EFS_VOLUME_METRICS_COUNT_FILES" "true" -}}
{{- end -}}
{{- if not (kindIs "invalid" $.Values.node.volMetricsRefreshPeriod) -}}
{{- $seconds := round (mulf 60 $.Values.node.volMetricsRefreshPeriod) 0 | int64 | toString -}}
{{- $_ := set $given "KUBE_EFS_VOLUME_METRICS_COUNT_REFRESH_SECONDS" $seconds -}}
{{- end -}}
{{- if not (kindIs "invalid" $.Values.node.volMetricsFsRateLimit) -}}
{{- $_ := set $given "KUBE_EFS_VOLUME_METRICS_COUNT_RATE_LIMIT" (toString $.Values.node.volMetricsFsRateLimit) -}}
{{- end -}}
{{- if $.Values.node.maxInflightMountCallsOptIn -}}
{{- $_ := set $given "KUBE_EFS_MAX_INFLIGHT_MOUNTS" (toString $.Values.node.maxInflightMountCalls) -}}
{{- end -}}
{{- if $.Values.node.volumeAttachLimitOptIn -}}
{{- $_ := set $given "KUBE_EFS_VOLUME_ATTACH_LIMIT" (toString $.Values.node.volumeAttachLimit) -}}
{{- end -}}
{{- if $.Values.node.forceUnmountAfterTimeout -}}
{{- $_ := set $given "KUBE_EFS_FORCE_UNMOUNT_AFTER_TIMEOUT" "true" -}}
{{- end -}}
{{- with $.Values.node.unmountTimeout -}}
{{- $_ := set $given "KUBE_EFS_UNMOUNT_TIMEOUT_SECONDS" (include "kube-efs.seconds" .) -}}
{{- end -}}
{{- if $.Values.node.serviceAccount.disableMutation }}{{ $_ := set $given "KUBE_EFS_REMOVE_STARTUP_TAINT" "false" }}{{ end -}}
{{- if ne (int $.Values.node.healthPort) 9812 -}}
{{- $_ := set $given "KUBE_EFS_HEALTH_PORT" (toString $.Values.node.healthPort) -}}
{{- end -}}
{{- $own := include "kube-efs.variables" $.Values.node.env | fromJsonArray -}}
{{- include "kube-efs.merged" (list $own (include "kube-efs.variables" $given | fromJsonArray)) -}}
{{- end -}}

{{/* The address that the values give the metrics of a process, or nothing. */}}
{{- define "kube-efs.healthHost" -}}
{{- range include (printf "kube-efs.%s.env" (index . 1)) (index . 0) | fromJsonArray -}}
{{- if eq .name "KUBE_EFS_HEALTH_HOST" }}{{ .value }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The paths of the values in a mapping, for a message. */}}
{{- define "kube-efs.paths" -}}
{{- $prefix := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if and (kindIs "map" $value) $value -}}
{{- include "kube-efs.paths" (list (printf "%s.%s" $prefix $key) $value) -}}
{{- else -}}
{{ $prefix }}.{{ $key }}{{ " " }}
{{- end -}}
{{- end -}}
{{- end -}}
