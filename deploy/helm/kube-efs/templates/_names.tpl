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

{{- define "kube-efs.names" -}}
{{- get (include "kube-efs.all-names" . | fromJson) (.Values.names | default "openshift-efs-stunnel") | toJson -}}
{{- end -}}

