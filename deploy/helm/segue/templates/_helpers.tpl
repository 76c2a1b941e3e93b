{{- define "segue.keyspace" -}}
{{ .Values.keyspace | default .Release.Name }}
{{- end }}

{{- define "segue.labels" -}}
app.kubernetes.io/part-of: segue
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
segue.dev/keyspace: {{ include "segue.keyspace" . | quote }}
{{- end }}

{{- /* The name of the objects of a role. */}}
{{- define "segue.name" -}}
{{- printf "%s-%s" (.root.Release.Name | trunc 50 | trimSuffix "-") .role }}
{{- end }}

{{- define "segue.selector" -}}
app.kubernetes.io/name: segue
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "segue.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The members of the chart's etcd, with commas between them: root, and a format for a member's name and its domain. */}}
{{- define "segue.etcdMembers" -}}
{{- $name := include "segue.name" (dict "role" "etcd" "root" .root) }}
{{- $domain := printf "%s.%s.svc" $name .root.Release.Namespace }}
{{- range $index := until (int .root.Values.etcd.replicas) }}
{{- if $index }},{{ end }}{{ printf $.format (printf "%s-%d" $name $index) $domain }}
{{- end }}
{{- end }}

{{- define "segue.store" -}}
keyspace = {{ include "segue.keyspace" . | quote }}
{{- with .Values.service }}
service = {{ . | quote }}
{{- end }}

[store]
{{- if .Values.etcd.enabled }}
endpoints = {{ splitList "," (include "segue.etcdMembers" (dict "root" . "format" "http://%s.%s:2379")) | toJson }}
{{- else }}
endpoints = {{ .Values.store.endpoints | toJson }}
{{- end }}
prefix = {{ .Values.store.prefix | quote }}
{{- if .Values.store.credentialsSecret }}
password_file = "/run/secrets/segue-store/password"
{{- end }}
{{- if .Values.store.tlsSecret }}
tls = { ca = "/run/secrets/segue-store-tls/ca.crt", cert = "/run/secrets/segue-store-tls/tls.crt", key = "/run/secrets/segue-store-tls/tls.key" }
{{- end }}
{{- end }}

{{- /* The part that the pods of all roles have in common: role, values, root, and the ports by name. */}}
{{- define "segue.podSpec" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "segue.selector" . | nindent 8 }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .role }}
    image: {{ include "segue.image" .root }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    args: [run, --config, /etc/segue/segue.toml]
    env:
      - name: POD_IP
        valueFrom: {fieldRef: {fieldPath: status.podIP}}
      - {name: SEGUE__ADMIN__ADVERTISE, value: "$(POD_IP):9090"}
      {{- with .root.Values.store.credentialsSecret }}
      - name: SEGUE__STORE__USERNAME
        valueFrom: {secretKeyRef: {name: {{ . }}, key: username}}
      {{- end }}
      {{- with .root.Values.admin }}
      {{- if ne .write "none" }}
      - {name: SEGUE__ADMIN__WRITE, value: {{ .write }}}
      {{- end }}
      {{- if eq .write "token" }}
      - {name: SEGUE__ADMIN__TOKEN_FILE, value: /run/secrets/segue-admin-token/token}
      {{- end }}
      {{- if .tlsSecret }}
      - {name: SEGUE__ADMIN__TLS__CERT, value: /run/secrets/segue-admin-tls/tls.crt}
      - {name: SEGUE__ADMIN__TLS__KEY, value: /run/secrets/segue-admin-tls/tls.key}
      {{- end }}
      {{- if eq .write "client_cert" }}
      - {name: SEGUE__ADMIN__TLS__CLIENT_CA, value: /run/secrets/segue-admin-tls/ca.crt}
      {{- end }}
      {{- end }}
      {{- if dig "tls" "secret" "" .values }}
      - {name: SEGUE__ROUTER__TLS__CERT, value: /run/secrets/segue-router-tls/tls.crt}
      - {name: SEGUE__ROUTER__TLS__KEY, value: /run/secrets/segue-router-tls/tls.key}
      {{- if .values.tls.clientCertificates }}
      - {name: SEGUE__ROUTER__TLS__CLIENT_CA, value: /run/secrets/segue-router-tls/ca.crt}
      {{- end }}
      {{- end }}
    ports:
      {{- range $name, $port := .ports }}
      - {name: {{ $name }}, containerPort: {{ $port }}}
      {{- end }}
    {{- $scheme := ternary "HTTPS" "HTTP" (not (empty .root.Values.admin.tlsSecret)) }}
    readinessProbe:
      httpGet: {path: /ready, port: admin, scheme: {{ $scheme }}}
      periodSeconds: 2
      failureThreshold: 2
    livenessProbe:
      httpGet: {path: /health, port: admin, scheme: {{ $scheme }}}
      periodSeconds: 5
      failureThreshold: 6
    {{- with .values.preStopSeconds }}
    lifecycle:
      preStop: {sleep: {seconds: {{ . }}}}
    {{- end }}
    resources: {{ toYaml .values.resources | nindent 6 }}
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts:
      - {name: config, mountPath: /etc/segue, readOnly: true}
      {{- if .root.Values.store.credentialsSecret }}
      - {name: store, mountPath: /run/secrets/segue-store, readOnly: true}
      {{- end }}
      {{- if .root.Values.store.tlsSecret }}
      - {name: store-tls, mountPath: /run/secrets/segue-store-tls, readOnly: true}
      {{- end }}
      {{- if eq .root.Values.admin.write "token" }}
      - {name: admin-token, mountPath: /run/secrets/segue-admin-token, readOnly: true}
      {{- end }}
      {{- if .root.Values.admin.tlsSecret }}
      - {name: admin-tls, mountPath: /run/secrets/segue-admin-tls, readOnly: true}
      {{- end }}
      {{- if dig "tls" "secret" "" .values }}
      - {name: router-tls, mountPath: /run/secrets/segue-router-tls, readOnly: true}
      {{- end }}
      {{- with .values.extraVolumeMounts }} {{- toYaml . | nindent 6 }} {{- end }}
volumes:
  - name: config
    configMap: {name: {{ include "segue.name" . }}}
  {{- with .root.Values.store.credentialsSecret }}
  - name: store
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- with .root.Values.store.tlsSecret }}
  - name: store-tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- if eq .root.Values.admin.write "token" }}
  - name: admin-token
    secret: {secretName: {{ .root.Values.admin.tokenSecret | default (include "segue.name" (dict "role" "admin" "root" .root)) }}, defaultMode: 0440}
  {{- end }}
  {{- with .root.Values.admin.tlsSecret }}
  - name: admin-tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- with dig "tls" "secret" "" .values }}
  - name: router-tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- with .values.extraVolumes }} {{- toYaml . | nindent 2 }} {{- end }}
{{- end }}

{{- /* ConfigMap, Deployment and PodDisruptionBudget of a role. */}}
{{- define "segue.role" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "segue.name" . }}
  labels: {{ include "segue.labels" .root | nindent 4 }} {{- include "segue.selector" . | nindent 4 }}
data:
  segue.toml: |
    {{- include "segue.store" .root | nindent 4 }}

    {{- .values.config | nindent 4 }}
    {{- .root.Values.common.config | nindent 4 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "segue.name" . }}
  labels: {{ include "segue.labels" .root | nindent 4 }} {{- include "segue.selector" . | nindent 4 }}
spec:
  {{- if not (dig "autoscaling" "enabled" false .values) }}
  replicas: {{ .values.replicas }}
  {{- end }}
  selector:
    matchLabels: {{ include "segue.selector" . | nindent 6 }}
  strategy:
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  template:
    metadata:
      labels: {{ include "segue.labels" .root | nindent 8 }} {{- include "segue.selector" . | nindent 8 }}
      annotations:
        # A changed configuration restarts the processes one by one.
        segue.dev/config: {{ printf "%s%s%s" (include "segue.store" .root) .values.config .root.Values.common.config | sha256sum }}
        {{- with .values.podAnnotations }} {{- toYaml . | nindent 8 }} {{- end }}
    spec: {{ include "segue.podSpec" . | nindent 6 }}
{{- if .root.Values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "segue.name" . }}
  labels: {{ include "segue.labels" .root | nindent 4 }} {{- include "segue.selector" . | nindent 4 }}
spec:
  maxUnavailable: {{ .root.Values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels: {{ include "segue.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{- /* The sidecar of a writer, for the list of containers of a chart that has this one as a dependency: image, and the name of the
volume with segue.toml. deploy/kubernetes/writer shows the rest of such a pod. */}}
{{- define "segue.sidecar" -}}
name: segue
image: {{ .image | quote }}
args: [run, --config, /etc/segue/segue.toml]
env:
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  - {name: SEGUE__POD__ADVERTISE, value: "$(POD_IP):8181"}
  - {name: SEGUE__ADMIN__ADVERTISE, value: "$(POD_IP):9090"}
  # Of the rollout, so that the coordinator moves fewer partitions during an update.
  - name: SEGUE__POD__VERSION
    valueFrom: {fieldRef: {fieldPath: "metadata.labels['controller-revision-hash']"}}
ports:
  - {name: pods, containerPort: 8181}
  - {name: admin, containerPort: 9090}
readinessProbe:
  httpGet: {path: /ready, port: admin}
  periodSeconds: 2
livenessProbe:
  httpGet: {path: /health, port: admin}
  periodSeconds: 5
  failureThreshold: 6
resources:
  requests: {cpu: 100m, memory: 64Mi}
  limits: {memory: 256Mi}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
volumeMounts:
  - {name: {{ .volume }}, mountPath: /etc/segue, readOnly: true}
{{- end }}
