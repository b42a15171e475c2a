{{- define "atoll.checkKeys" -}}
{{- $own := list "global" "otherCharts" "agent" "imagePullSecrets" "logLevel" "hosting" "networkPolicy" -}}
{{- range $key := keys .Values | sortAlpha -}}
{{- if not (or (has $key $own) (has $key $.Values.otherCharts)) -}}
{{- fail (printf "%s: there is no such value; there are %s. If another chart reads it, list it in otherCharts" $key (join ", " $own)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "atoll.hostingSelector" -}}
app.kubernetes.io/name: atoll-hosting
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "atoll.hostingTag" -}}
{{ .Values.hosting.image.tag | default .Values.global.version | default .Chart.AppVersion }}
{{- end }}

{{- define "atoll.hostingLabels" -}}
{{ include "atoll.hostingSelector" . }}
app.kubernetes.io/part-of: atoll
app.kubernetes.io/version: {{ include "atoll.hostingTag" . | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "atoll.hostingImage" -}}
{{ (.Values.global.images | default dict).hosting | default (printf "%s:%s" .Values.hosting.image.repository (include "atoll.hostingTag" .)) }}
{{- end }}

{{- define "atoll.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
