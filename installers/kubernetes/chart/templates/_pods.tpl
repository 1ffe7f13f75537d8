{{/* The version, as labels and images have it: a plus sign is not allowed there. */}}
{{- define "tandem.version" -}}
{{ .Chart.AppVersion | replace "+" "_" }}
{{- end }}

{{/* Labels of everything. */}}
{{- define "tandem.labels" -}}
app.kubernetes.io/name: tandem
app.kubernetes.io/version: {{ include "tandem.version" . | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The ConfigMap that has the kubeconfig. */}}
{{- define "tandem.config" -}}
{{ .Values.config.existing | default "tandem" }}
{{- end }}

{{/* Settings that a configuration's own are merged into. */}}
{{- define "tandem.settings" -}}
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection:
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
{{- if .Values.podMonitor.enabled }}
metricsBindAddress: 0.0.0.0:10249
{{- end }}
{{- end }}

{{/* What the pods of both systems have in common. A dict of root and os. */}}
{{- define "tandem.pod" -}}
hostNetwork: true
dnsPolicy: Default
serviceAccountName: tandem
priorityClassName: system-node-critical
terminationGracePeriodSeconds: 30
nodeSelector:
  kubernetes.io/os: {{ .os }}
tolerations:
  - operator: Exists
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What their containers have in common. A dict of root and variant. */}}
{{- define "tandem.container" -}}
{{- $image := .root.Values.image -}}
image: {{ printf "%s:%s%s" $image.repository ($image.tag | default (include "tandem.version" .root)) .variant | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
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
readinessProbe:
  httpGet: {path: /healthz, port: {{ .Values.healthPort }}}
  periodSeconds: 10
livenessProbe:
  httpGet: {path: /livez, port: {{ .Values.healthPort }}}
  initialDelaySeconds: 60
  periodSeconds: 10
  failureThreshold: 6
{{- end }}
