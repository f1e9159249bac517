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

{{- define "operator-host.labels" -}}
{{ include "operator-host.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
