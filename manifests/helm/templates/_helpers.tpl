{{- define "operator-host.account" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- define "operator-host.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
{{- if ne .Release.Name .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- end }}

{{- define "operator-host.labels" -}}
{{ include "operator-host.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
