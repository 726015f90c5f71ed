{{- define "drumline.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "drumline.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Labels of a part's pods, and what selects them: dict "root" $ "part" "sink"; "component", where a part is several. */ -}}
{{- define "drumline.selector" -}}
app.kubernetes.io/name: drumline
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component | default .part }}
{{- end }}

{{- define "drumline.labels" -}}
{{ include "drumline.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- /* Settings and secrets of a part: those of all programs, then its own. JSON. */ -}}
{{- define "drumline.secrets" -}}
{{- $own := index .root.Values .part -}}
{{- mergeOverwrite (dict) .root.Values.secrets $own.secrets | toJson -}}
{{- end }}

{{- /* The consumer group of workers, or of the sinks of a server: "replica" is its name, none for the primary. */ -}}
{{- define "drumline.group" -}}
{{- $own := index .root.Values .part -}}
{{- $names := mergeOverwrite (dict "DRUMLINE_STREAM__APP_ID" "drumline-streams" "DRUMLINE_SINK__GROUP" "drumline-sink") .root.Values.settings $own.settings -}}
{{- if eq .part "worker" }}{{ $names.DRUMLINE_STREAM__APP_ID }}
{{- else }}{{ $names.DRUMLINE_SINK__GROUP }}{{ with .replica }}-{{ . }}{{ end }}{{ end }}
{{- end }}

{{- /* The port of a ClickHouse server, as the programs take it. */ -}}
{{- define "drumline.port" -}}
{{- $url := urlParse . -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "8443" "8123" (eq $url.scheme "https")) -}}
{{- end }}

{{- define "drumline.env" -}}
{{- $own := index .root.Values .part -}}
{{- $secrets := include "drumline.secrets" . | fromJson -}}
{{- $settings := dict
    "DRUMLINE_KAFKA__BOOTSTRAP" (required "kafka.bootstrap: which brokers? host:port,host:port" .root.Values.kafka.bootstrap)
    "DRUMLINE_KAFKA__PARTITIONS" .root.Values.kafka.partitions
    "DRUMLINE_KAFKA__REPLICATION" .root.Values.kafka.replication
    "DRUMLINE_CLICKHOUSE__URL" (required "clickhouse.url: which server? http(s)://host:port" .root.Values.clickhouse.url)
    "DRUMLINE_CLICKHOUSE__DATABASE" .root.Values.clickhouse.database
    "DRUMLINE_METRICS_ADDRESS" "0.0.0.0"
    "DRUMLINE_LOG_JSON" "true" -}}
{{- with .root.Values.kafka.topicPartitions }}{{ $_ := set $settings "DRUMLINE_KAFKA__TOPIC_PARTITIONS" (toJson .) }}{{ end -}}
{{- $replicas := dict }}{{ range $name, $replica := .root.Values.clickhouse.replicas }}{{ $_ := set $replicas $name $replica.url }}{{ end -}}
{{- with $replicas }}{{ $_ := set $settings "DRUMLINE_CLICKHOUSE__REPLICAS" (toJson .) }}{{ end -}}
{{- range $name := keys $secrets }}{{ $_ := set $settings $name (printf "/run/secrets/drumline/%s" $name) }}{{ end -}}
{{- $settings = mergeOverwrite $settings .settings .root.Values.settings $own.settings -}}
{{- range $name := keys $settings | sortAlpha }}
- {name: {{ $name }}, value: {{ get $settings $name | toString | quote }}}
{{- end }}
{{- end }}

{{- define "drumline.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if ne (include "drumline.secrets" .) "{}" }}
- {name: secrets, mountPath: /run/secrets/drumline, readOnly: true}
{{- end }}
{{- end }}

{{- define "drumline.volumes" -}}
{{- $secrets := include "drumline.secrets" . | fromJson -}}
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- if $secrets }}
- name: secrets
  projected:
    defaultMode: 0444
    sources:
    {{- range $name := keys $secrets | sortAlpha }}
    {{- $from := get $secrets $name }}
    - secret: {name: {{ $from.name }}, items: [{key: {{ $from.key }}, path: {{ $name }}}]}
    {{- end }}
{{- end }}
{{- end }}

{{- /* What every pod but the agent's has: no token, no root. */ -}}
{{- define "drumline.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "drumline.container" -}}
image: {{ include "drumline.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{- toYaml (index .root.Values .part).resources | nindent 2 }}
{{- end }}

{{- /* A program is ready once its servers answer; it is killed when its main loop stands still. */ -}}
{{- define "drumline.probes" -}}
ports: [{name: metrics, containerPort: {{ .port }}}]
startupProbe: {httpGet: {path: /healthz, port: metrics}, periodSeconds: 2, failureThreshold: 60}
livenessProbe: {httpGet: {path: /healthz, port: metrics}, periodSeconds: 20, timeoutSeconds: 5}
readinessProbe: {httpGet: {path: /readyz, port: metrics}, periodSeconds: 5, timeoutSeconds: 5}
{{- end }}
