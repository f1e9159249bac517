{{- define "operator-host.account" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- define "operator-host.image" -}}
{{- $host := first (splitList "/" .Values.image.repository) -}}
{{- if or (not (contains "/" .Values.image.repository)) (not (or (contains "." $host) (contains ":" $host) (eq $host "localhost"))) -}}
{{- fail "image.repository must begin with a registry, such as registry.example.com/operator-host" -}}
{{- end -}}
{{- with .Values.image.digest -}}
{{ $.Values.image.repository }}@{{ . }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "operator-host.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "operator-host.egress.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-egress
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "operator-host.labels" -}}
{{ include "operator-host.selector" . }}
{{ include "operator-host.release" . }}
{{- end }}

{{- define "operator-host.egress.labels" -}}
{{ include "operator-host.egress.selector" . }}
{{ include "operator-host.release" . }}
{{- end }}

{{- define "operator-host.release" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Where all pods may run. */}}
{{- define "operator-host.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  {{- toYaml .Values.nodeSelector | nindent 2 }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "operator-host.security" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* The variables of telemetry. */}}
{{- define "operator-host.telemetry" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.pod.name=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE),k8s.node.name=$(NODE_NAME)
# What the host exports, one by one: a key such as LD_PRELOAD in that ConfigMap stays outside.
{{- $telemetry := printf "%s-telemetry" .Release.Name }}
{{- range (list
    "OTEL_SDK_DISABLED"
    "OTEL_TRACES_EXPORTER"
    "OTEL_METRICS_EXPORTER"
    "OTEL_TRACES_SAMPLER"
    "OTEL_TRACES_SAMPLER_ARG"
    "OTEL_BSP_SCHEDULE_DELAY"
    "OTEL_BSP_MAX_QUEUE_SIZE"
    "OTEL_METRIC_EXPORT_INTERVAL"
    "OTEL_EXPORTER_OTLP_ENDPOINT"
    "OTEL_EXPORTER_OTLP_PROTOCOL"
    "OTEL_EXPORTER_OTLP_CERTIFICATE"
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
    "OTEL_EXPORTER_OTLP_CLIENT_KEY"
    "OTEL_EXPORTER_OTLP_TIMEOUT"
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE"
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE"
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY"
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"
    "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE"
    "OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE"
    "OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY"
    "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT"
) }}
- name: {{ . }}
  valueFrom: {configMapKeyRef: {name: {{ $telemetry }}, key: {{ . }}, optional: true}}
{{- end }}
# Headers hold credentials.
{{- range (list "OTEL_EXPORTER_OTLP_HEADERS" "OTEL_EXPORTER_OTLP_TRACES_HEADERS" "OTEL_EXPORTER_OTLP_METRICS_HEADERS") }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $telemetry }}, key: {{ . }}, optional: true}}
{{- end }}
{{- end }}

{{- /* What every pod may reach: names, the API server and collectors. */}}
{{- define "operator-host.outgoing" -}}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: kube-system
    - ipBlock: {cidr: 169.254.0.0/16}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
- ports:
    - {protocol: TCP, port: 443}
    - {protocol: TCP, port: 6443}
  {{- with .Values.networkPolicy.apiServer }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ .Values.networkPolicy.telemetryTo }}
  ports:
    - {protocol: TCP, port: 4317}
    - {protocol: TCP, port: 4318}
{{- end }}
