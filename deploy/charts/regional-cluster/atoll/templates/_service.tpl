{{/*
The objects of a service. Argument: a dict with

  root      the chart's context
  name      of the service, and of its values
  command   list, after atoll
  args      list of texts
  ports     list of {name, port}
  replicas  number; one process only: singleton, too
  database  its database; empty: none
  identity  whether it has a certificate of the region
  env, mounts, volumes   lists
  from      services that call it; outside: addresses that reach its ports
  to        services that it calls
*/}}
{{- define "atoll.service" -}}
{{- $root := .root -}}
{{- $v := get $root.Values .name -}}
{{- $full := printf "atoll-%s" .name -}}
{{- $scaled := and (hasKey $v "autoscaling") (dig "autoscaling" "enabled" false $v) -}}
{{- $traces := $root.Values.traces | default ($root.Values.global.services | default dict).traces -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $full }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "atoll.labels" . | nindent 4 }}
automountServiceAccountToken: false
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $full }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "atoll.labels" . | nindent 4 }}
  {{- with dig "service" "annotations" dict $v }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ dig "service" "type" "ClusterIP" $v }}
  {{- if not .ports }}
  clusterIP: None
  {{- end }}
  selector:
    {{- include "atoll.selector" . | nindent 4 }}
  {{- if or .ports $root.Values.metrics.enabled }}
  ports:
  {{- range .ports }}
  - name: {{ .name }}
    port: {{ .port }}
    targetPort: {{ .name }}
  {{- end }}
  {{- if $root.Values.metrics.enabled }}
  - name: metrics
    port: 9443
    targetPort: metrics
  {{- end }}
  {{- end }}
---
# Each replica keeps its key and certificate on a volume of its own, so it is a stateful set.
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $full }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "atoll.labels" . | nindent 4 }}
spec:
  serviceName: {{ $full }}
  podManagementPolicy: Parallel
  {{- if not $scaled }}
  replicas: {{ .replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "atoll.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "atoll.labels" . | nindent 8 }}
      {{- if has .name (list "clm" "sentinel") }}
      annotations:
        checksum/config: {{ include "atoll.clmFile" $root | sha256sum }}
      {{- end }}
    spec:
      serviceAccountName: {{ $full }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 60
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile:
          type: RuntimeDefault
      {{- if not .singleton }}
      topologySpreadConstraints:
      {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
      - maxSkew: 1
        topologyKey: {{ $key }}
        whenUnsatisfiable: ScheduleAnyway
        labelSelector:
          matchLabels:
            {{- include "atoll.selector" $ | nindent 12 }}
      {{- end }}
      {{- end }}
      containers:
      - name: {{ .name }}
        image: {{ include "atoll.image" . | quote }}
        imagePullPolicy: {{ $root.Values.image.pullPolicy }}
        command:
        - atoll
        {{- range .command }}
        - {{ . }}
        {{- end }}
        args:
        {{- range .args }}
        - {{ . | quote }}
        {{- end }}
        {{- if .database }}
        {{- include "atoll.dsnArg" . | nindent 8 }}
        {{- end }}
        {{- if .identity }}
        - --identity=/var/lib/atoll/identity
        - --pki=https://atoll-pki:8443
        - --ca=/etc/atoll/ca/ca.pem
        - --token-file=/etc/atoll/join/$(POD_NAME)
        {{- end }}
        - --ops=127.0.0.1:8081
        - --log-level={{ $root.Values.logLevel }}
        {{- range $v.extraArgs }}
        - {{ . | quote }}
        {{- end }}
        env:
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        {{- if and $traces (has .name (list "clm" "adapter" "sentinel")) }}
        - name: HYPERFLEET_TRACING_ENABLED
          value: "true"
        - name: OTEL_EXPORTER_OTLP_ENDPOINT
          value: {{ $traces | quote }}
        - name: OTEL_EXPORTER_OTLP_PROTOCOL
          value: http/protobuf
        {{- end }}
        {{- with .env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with .ports }}
        ports:
        {{- range . }}
        - name: {{ .name }}
          containerPort: {{ .port }}
        {{- end }}
        {{- end }}
        # Health needs no identity, so it is on loopback and asked from inside.
        startupProbe:
          exec:
            command: [atoll, probe, --ops=127.0.0.1:8081, /healthz]
          periodSeconds: 2
          failureThreshold: 30
          timeoutSeconds: 5
        livenessProbe:
          exec:
            command: [atoll, probe, --ops=127.0.0.1:8081, /healthz]
          periodSeconds: 20
          timeoutSeconds: 5
        readinessProbe:
          exec:
            command: [atoll, probe, --ops=127.0.0.1:8081, /readyz]
          periodSeconds: 5
          timeoutSeconds: 5
        # The pod takes requests until no client is sent to it any more.
        lifecycle:
          preStop:
            sleep:
              seconds: 5
        resources:
          {{- toYaml $v.resources | nindent 10 }}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop: [ALL]
        volumeMounts:
        - name: data
          mountPath: /var/lib/atoll
        {{- if .identity }}
        - name: ca
          mountPath: /etc/atoll/ca
          readOnly: true
        - name: join
          mountPath: /etc/atoll/join
          readOnly: true
        {{- end }}
        {{- if .database }}
        - name: database-password
          mountPath: /etc/atoll/database-password
          readOnly: true
        {{- end }}
        {{- if and .database $root.Values.database.caConfigMap }}
        - name: database
          mountPath: /etc/atoll/database
          readOnly: true
        {{- end }}
        {{- if and $root.Values.broker.configSecret (has "broker" .to) }}
        - name: broker
          mountPath: /etc/atoll/broker
          readOnly: true
        {{- end }}
        {{- with .mounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if $root.Values.metrics.enabled }}
      - name: metrics
        image: {{ $root.Values.metrics.image | quote }}
        args:
        - --secure-listen-address=:9443
        - --upstream=http://127.0.0.1:8081/
        - --allow-paths=/metrics
        ports:
        - name: metrics
          containerPort: 9443
        resources:
          {{- toYaml $root.Values.metrics.resources | nindent 10 }}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop: [ALL]
        volumeMounts:
        - name: kubernetes
          mountPath: /var/run/secrets/kubernetes.io/serviceaccount
          readOnly: true
      {{- end }}
      volumes:
      {{- if .identity }}
      - name: ca
        configMap:
          name: {{ $root.Values.caConfigMap }}
          optional: true
      - name: join
        secret:
          secretName: {{ $full }}-join
          defaultMode: 0440
          optional: true
      {{- end }}
      {{- if .database }}
      - name: database-password
        secret:
          secretName: {{ $full }}-database
          defaultMode: 0440
          items:
          - key: password
            path: password
      {{- end }}
      {{- if and .database $root.Values.database.caConfigMap }}
      - name: database
        configMap:
          name: {{ $root.Values.database.caConfigMap }}
      {{- end }}
      {{- if and $root.Values.broker.configSecret (has "broker" .to) }}
      - name: broker
        secret:
          secretName: {{ $root.Values.broker.configSecret }}
          defaultMode: 0440
      {{- end }}
      {{- if $root.Values.metrics.enabled }}
      - name: kubernetes  # for the proxy of metrics only
        projected:
          defaultMode: 0440
          sources:
          - serviceAccountToken:
              path: token
          - configMap:
              name: kube-root-ca.crt
              items:
              - key: ca.crt
                path: ca.crt
      {{- end }}
      {{- with .volumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- with $v.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  volumeClaimTemplates:
  - metadata:
      name: data
    spec:
      accessModes: [ReadWriteOnce]
      {{- with $v.persistence.storageClass }}
      storageClassName: {{ . }}
      {{- end }}
      resources:
        requests:
          storage: {{ $v.persistence.size }}
{{- if not .singleton }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $full }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "atoll.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "atoll.selector" . | nindent 6 }}
{{- end }}
{{- if $scaled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $full }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "atoll.labels" . | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: StatefulSet
    name: {{ $full }}
  minReplicas: {{ $v.autoscaling.minReplicas }}
  maxReplicas: {{ $v.autoscaling.maxReplicas }}
  metrics:
  - type: ContainerResource
    containerResource:
      name: cpu
      container: {{ .name }}
      target:
        type: Utilization
        averageUtilization: {{ $v.autoscaling.cpu }}
{{- end }}
{{- include "atoll.networkPolicy" . }}
{{- include "atoll.metrics" . }}
{{- end }}
