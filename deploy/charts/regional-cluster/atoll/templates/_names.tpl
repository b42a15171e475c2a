{{/* Labels that select the pods of a service. Argument: dict root, name. */}}
{{- define "atoll.selector" -}}
app.kubernetes.io/name: atoll-{{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "atoll.labels" -}}
{{ include "atoll.selector" . }}
app.kubernetes.io/part-of: atoll
app.kubernetes.io/version: {{ include "atoll.tag" .root | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "atoll.tag" -}}
{{ .Values.image.tag | default .Values.global.version | default .Chart.AppVersion }}
{{- end }}

{{/* The image of a service: global.images names one for a service that differs. */}}
{{- define "atoll.image" -}}
{{- $other := get (.root.Values.global.images | default dict) .name -}}
{{ $other | default (printf "%s:%s" .root.Values.image.repository (include "atoll.tag" .root)) }}
{{- end }}

{{- define "atoll.region" -}}
{{ required "region: the region's name, as signatures must name it; or global.region" (.Values.region | default .Values.global.region) }}
{{- end }}

{{/* host:port of a broker that is not the region's own; empty for its own. */}}
{{- define "atoll.otherBroker" -}}
{{ .Values.broker.endpoint | default (.Values.global.services | default dict).broker | default "" }}
{{- end }}

{{- define "atoll.runsBroker" -}}
{{- if not (or (include "atoll.otherBroker" .) .Values.broker.configSecret) }}yes{{ end }}
{{- end }}

{{- define "atoll.replicas" -}}
{{- $global := get ((.root.Values.global.services | default dict).replicas | default dict) .name -}}
{{ get (get .root.Values .name) "replicas" | default $global | default 2 | int }}
{{- end }}

{{/* Arguments by which a service reaches the broker. */}}
{{- define "atoll.brokerArgs" -}}
{{- if .Values.broker.configSecret -}}
- --message-broker-config-file=/etc/atoll/broker/broker.yaml
{{- else -}}
- --mqtt={{ include "atoll.otherBroker" . | default "atoll-broker:8883" }}
{{- end }}
{{- end }}

{{/* The file of the lifecycle manager. What files/clm.yaml sets counts before values: it keeps accounts apart. */}}
{{- define "atoll.clmFile" -}}
{{- mergeOverwrite (deepCopy .Values.clm.config) (.Files.Get "files/clm.yaml" | fromYaml) | toYaml }}
{{- end }}

{{/* The database of a service. Its password is in a file, because each process of the container and its crash reports
have the environment. */}}
{{- define "atoll.dsnArg" -}}
{{- $db := .root.Values.database -}}
- {{ printf "--dsn=host=%s port=%v dbname=%s user=%s sslmode=%s%s" $db.host $db.port .database .database $db.sslMode
  (ternary " sslrootcert=/etc/atoll/database/ca.pem" "" (ne $db.caConfigMap "")) | quote }}
- --dsn-password-file=/etc/atoll/database-password/password
{{- end }}

{{/* Values of another top-level key are a mistake, or those of another chart of the cluster, which otherCharts names. */}}
{{- define "atoll.checkKeys" -}}
{{- $own := list "global" "otherCharts" "image" "imagePullSecrets" "region" "logLevel" "traces" "caConfigMap" "database"
  "pki" "broker" "clm" "sentinel" "maestro" "adapter" "platform" "metrics" "networkPolicy" -}}
{{- range $key := keys .Values | sortAlpha -}}
{{- if not (or (has $key $own) (has $key $.Values.otherCharts)) -}}
{{- fail (printf "%s: there is no such value; there are %s. If another chart reads it, list it in otherCharts" $key (join ", " $own)) -}}
{{- end -}}
{{- end -}}
{{- end }}
