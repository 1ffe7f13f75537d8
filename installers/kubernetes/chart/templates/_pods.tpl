{{/* The version, as labels and images have it: a plus sign is not allowed there. */}}
{{- define "tandem.version" -}}
{{ .Chart.AppVersion | replace "+" "_" }}
{{- end }}

{{/* What the program is called here: the label, and the objects. */}}
{{- define "tandem.name" -}}
{{ .Values.nameOverride | default "tandem" }}
{{- end }}
{{- define "tandem.fullname" -}}
{{ .Values.fullnameOverride | default (include "tandem.name" .) }}
{{- end }}

{{/* Labels of everything. */}}
{{- define "tandem.labels" -}}
app.kubernetes.io/name: {{ include "tandem.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ include "tandem.version" . | quote }}
app.kubernetes.io/component: service-proxy
app.kubernetes.io/part-of: tandem
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- if eq .Release.Service "Helm" }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of pods: without versions, so that an upgrade that changes no more leaves them alone. */}}
{{- define "tandem.podLabels" -}}
{{ omit (include "tandem.labels" . | fromYaml) "app.kubernetes.io/version" "helm.sh/chart" | toYaml }}
{{- end }}

{{/* What a DaemonSet finds its pods by. It can never be changed: a dict of root and os. */}}
{{- define "tandem.selector" -}}
{app.kubernetes.io/name: {{ include "tandem.name" .root }}, kubernetes.io/os: {{ .os }}}
{{- end }}

{{/* The top of a DaemonSet: all but the pod's spec. A dict of root, os and name. */}}
{{- define "tandem.daemonset" -}}
{{- $set := index .root.Values .os -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "tandem.labels" .root | nindent 4 }}
  {{- with $set.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  selector:
    matchLabels: {{ include "tandem.selector" . }}
  updateStrategy: {{- toYaml $set.updateStrategy | nindent 4 }}
  template:
    metadata:
      labels: {{- mergeOverwrite (deepCopy $set.podLabels) (include "tandem.podLabels" .root | fromYaml) (include "tandem.selector" . | fromYaml) | toYaml | nindent 8 }}
      {{- $annotations := deepCopy $set.podAnnotations }}
      {{- /* Restarts need the pods to be new, and others lose nothing: rules are adopted. Without a cluster, as in
      helm template, an existing ConfigMap is not known. */}}
      {{- $conf := "" }}
      {{- if or (eq .os "windows") (not .root.Values.config.existing) }}
      {{- $conf = printf "%s%s" (include "tandem.conf" .) (ternary "" .root.Values.config.apiServer (not (empty .root.Values.config.existing))) }}
      {{- else }}
      {{- with lookup "v1" "ConfigMap" .root.Release.Namespace .root.Values.config.existing }}
      {{- $conf = toJson .data }}
      {{- end }}
      {{- end }}
      {{- with $conf }}
      {{- $_ := set $annotations "checksum/config" (sha256sum .) }}
      {{- end }}
      {{- with $annotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}

{{/* The ConfigMap that has the kubeconfig. */}}
{{- define "tandem.config" -}}
{{ .Values.config.existing | default (include "tandem.fullname" .) }}
{{- end }}

{{/* Settings that a configuration's own are merged into. */}}
{{- define "tandem.settings" -}}
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection:
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
{{- if or .Values.podMonitor.enabled .Values.kubectl.enabled }}
metricsBindAddress: 0.0.0.0:10249
{{- end }}
{{- if ne 10256 (int .Values.healthPort) }}
healthzBindAddress: 0.0.0.0:{{ .Values.healthPort }}
{{- end }}
{{- end }}

{{/* The configuration that the chart makes for a system: a dict of root and os. */}}
{{- define "tandem.conf" -}}
{{- if eq .os "windows" -}}
{{- mergeOverwrite (include "tandem.settings" .root | fromYaml) (dict "winkernel" (dict "enableDSR" .root.Values.windows.enableDSR)) .root.Values.windows.settings | toYaml }}
{{- else -}}
{{- mergeOverwrite (include "tandem.settings" .root | fromYaml) .root.Values.config.settings | toYaml }}
{{- end -}}
{{- end }}

{{/* What the pods of both systems have in common. A dict of root and os. */}}
{{- define "tandem.pod" -}}
{{- $set := index .root.Values .os -}}
hostNetwork: true
dnsPolicy: Default
serviceAccountName: {{ include "tandem.fullname" .root }}
priorityClassName: system-node-critical
terminationGracePeriodSeconds: 30
nodeSelector: {{- mergeOverwrite (deepCopy $set.nodeSelector) (dict "kubernetes.io/os" .os) | toYaml | nindent 2 }}
{{- with $set.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $set.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What their containers have in common. A dict of root, os and variant. */}}
{{- define "tandem.container" -}}
{{- $image := .root.Values.image -}}
image: {{ printf "%s:%s%s" $image.repository ($image.tag | default (include "tandem.version" .root)) .variant | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  {{- with (index .root.Values .os).extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The port that a PodMonitor asks for. */}}
{{- define "tandem.ports" -}}
{{- if .Values.podMonitor.enabled }}
ports:
  - {name: metrics, containerPort: 10249}
{{- end }}
{{- end }}

{{/* Probes. A proxy whose rules are late is not ready; it is only restarted when
     its loop hangs. */}}
{{- define "tandem.probes" -}}
{{- /* The first probe of a container comes at once, before any process listens: it would be an
     Unhealthy Event for each pod. */}}
startupProbe:
  httpGet: {path: /livez, port: {{ .Values.healthPort }}}
  initialDelaySeconds: 2
  periodSeconds: 1
  failureThreshold: 300
readinessProbe:
  httpGet: {path: /healthz, port: {{ .Values.healthPort }}}
  periodSeconds: 10
livenessProbe:
  httpGet: {path: /livez, port: {{ .Values.healthPort }}}
  periodSeconds: 10
  failureThreshold: 6
{{- end }}

{{/* The containers of a pod that removes what Tandem has programmed on its node, in place of Tandem: the first one does,
     and the second one keeps the pod, which a DaemonSet would start again. A dict of root, os, variant and more fields of
     both, in YAML. */}}
{{- define "tandem.cleanup" -}}
initContainers:
  - name: cleanup
    {{- include "tandem.container" . | nindent 4 }}
    args: [cleanup, --config=/var/lib/kube-proxy/config.conf]
    {{- .more | nindent 4 }}
containers:
  - name: cleaned
    {{- include "tandem.container" . | nindent 4 }}
    args: [cleanup, --hold, --config=/var/lib/kube-proxy/config.conf]
    {{- .more | nindent 4 }}
{{- end }}
