{{- define "atoll.networkPolicy" -}}
{{- $root := .root -}}
{{- $policy := $root.Values.networkPolicy -}}
{{- if $policy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: atoll-{{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "atoll.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "atoll.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  {{- if or .from .outside $root.Values.metrics.enabled }}
  ingress:
  {{- if or .from .outside }}
  - from:
    {{- range .from }}
    - podSelector:
        matchLabels:
          {{- include "atoll.selector" (dict "root" $root "name" .) | nindent 10 }}
    {{- end }}
    {{- range .outside }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
    ports:
    {{- range .ports }}
    - port: {{ .name }}
    {{- end }}
  {{- end }}
  {{- if $root.Values.metrics.enabled }}
  - from:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ $root.Values.metrics.namespace }}
    ports:
    - port: metrics
  {{- end }}
  {{- end }}
  egress:
  - to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: kube-system
    ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
  {{- range .to }}
  {{- if and (eq . "broker") (not (include "atoll.runsBroker" $root)) }}
  - to:
    {{- range $policy.broker.cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
    ports:
    - port: {{ $policy.broker.port }}
  {{- else }}
  - to:
    - podSelector:
        matchLabels:
          {{- include "atoll.selector" (dict "root" $root "name" .) | nindent 10 }}
  {{- end }}
  {{- end }}
  {{- if .database }}
  - to:
    {{- range $root.Values.database.cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
    ports:
    - port: {{ $root.Values.database.port }}
  {{- end }}
  {{- if $root.Values.metrics.enabled }}
  - to:
    {{- range $policy.kubernetes.cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
    ports:
    {{- range $policy.kubernetes.ports }}
    - port: {{ . }}
    {{- end }}
  {{- end }}
  {{- with $policy.extraEgress }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "atoll.metrics" -}}
{{- $root := .root -}}
{{- if $root.Values.metrics.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: atoll-{{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "atoll.labels" . | nindent 4 }}
    {{- with $root.Values.metrics.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "atoll.selector" . | nindent 6 }}
  endpoints:
  - port: metrics
    path: /metrics
    scheme: https
    interval: {{ $root.Values.metrics.interval }}
    bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
    tlsConfig:
      insecureSkipVerify: true  # the proxy signs its own certificate
---
# The proxy asks this cluster's API who calls and whether he may.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $root.Release.Namespace }}-atoll-{{ .name }}-metrics
  labels:
    {{- include "atoll.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:auth-delegator
subjects:
- kind: ServiceAccount
  name: atoll-{{ .name }}
  namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- end }}
