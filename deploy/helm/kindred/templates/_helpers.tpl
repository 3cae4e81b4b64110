{{- define "kindred.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 30 | trimSuffix "-" -}}
{{- end -}}

{{- define "kindred.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else if contains (include "kindred.name" .) .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kindred.name" .) | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kindred.selector" -}}
app.kubernetes.io/name: {{ include "kindred.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kindred.labels" -}}
{{ include "kindred.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kindred.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The Secret with a certificate: dict "root" $ "of" "server". */}}
{{- define "kindred.secret" -}}
{{- $words := dict "apiserverClient" "apiserver-client" -}}
{{- $word := default .of (get $words .of) -}}
{{- default (printf "%s-%s-tls" (include "kindred.fullname" .root) $word) (get .root.Values.tls.secrets .of) -}}
{{- end -}}

{{/* Where pods of a headless Service are: dict "root" $ "service" NAME. */}}
{{- define "kindred.domain" -}}
{{ .service }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end -}}

{{- define "kindred.member" -}}
https://{{ .service }}-{{ .ordinal }}.{{ include "kindred.domain" . }}:2379
{{- end -}}

{{- define "kindred.meta" -}}
{{- if .Values.meta.endpoints -}}
{{ join "," .Values.meta.endpoints }}
{{- else -}}
{{- $service := printf "%s-meta" (include "kindred.fullname" .) -}}
{{ include "kindred.member" (dict "root" . "service" $service "ordinal" 0) }}
{{- end -}}
{{- end -}}

{{- define "kindred.podSecurity" -}}
runAsNonRoot: true
runAsUser: 2379
runAsGroup: 2379
fsGroup: 2379
# Files of a shard stay closed to its group.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "kindred.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* What the pods of all processes have: dict "root" $ "component" NAME "selector" LABELS. */}}
{{- define "kindred.pod" -}}
serviceAccountName: {{ include "kindred.fullname" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: 40
securityContext:
  {{- include "kindred.podSecurity" .root | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: {{ .root.Values.topologySpread.hostname }}
    labelSelector:
      matchLabels:
        {{- .selector | nindent 8 }}
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: 1
    whenUnsatisfiable: {{ .root.Values.topologySpread.zone }}
    labelSelector:
      matchLabels:
        {{- .selector | nindent 8 }}
{{- end -}}

{{/* The flags of an admin port that kubelets may probe. */}}
{{- define "kindred.adminArgs" -}}
- --admin-cert-file=/etc/kindred/pki/{{ . }}/tls.crt
- --admin-key-file=/etc/kindred/pki/{{ . }}/tls.key
- --admin-client-ca-file=/etc/kindred/pki/admin/ca.crt
- --admin-client-names=kindred-admin
- --admin-anonymous-probes
{{- end -}}

{{/* How a store lets clients in. */}}
{{- define "kindred.shardTls" -}}
- --cert-file=/etc/kindred/pki/shard/tls.crt
- --key-file=/etc/kindred/pki/shard/tls.key
- --trusted-ca-file=/etc/kindred/pki/shard/ca.crt
- --client-cert-auth
- --router-names=kindred-router
{{- end -}}

{{/* A start may read a large log, or wait for a primary: half an hour is given before it begins anew. */}}
{{- define "kindred.probes" -}}
startupProbe:
  httpGet: { path: /livez, port: admin, scheme: HTTPS }
  periodSeconds: 2
  failureThreshold: 900
livenessProbe:
  httpGet: { path: /livez, port: admin, scheme: HTTPS }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: {{ . | quote }}, port: admin, scheme: HTTPS }
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{/* Keys are for the group of the processes alone: 288 is 0440. */}}
{{- define "kindred.secretVolume" -}}
- name: {{ .of }}-tls
  secret:
    secretName: {{ include "kindred.secret" . }}
    defaultMode: 288
{{- end -}}

{{/* The authority of those who may ask admin ports, which is not that of stores. No key is mounted. */}}
{{- define "kindred.adminCa" -}}
- name: admin-ca
  secret:
    secretName: {{ include "kindred.secret" (dict "root" . "of" "metrics") }}
    items: [{ key: ca.crt, path: ca.crt }]
{{- end -}}

{{/* What the schema cannot say. */}}
{{- define "kindred.check" -}}
{{- $names := dict -}}
{{- $slots := dict -}}
{{- range .Values.stores -}}
{{- if hasKey $names .name -}}{{- fail (printf "stores: %s is there twice" .name) -}}{{- end -}}
{{- $slot := printf "%d" (int .slot) -}}
{{- if hasKey $slots $slot -}}{{- fail (printf "stores: %s and %s have the slot %s, and a slot is one store's alone" (get $slots $slot) .name $slot) -}}{{- end -}}
{{- $_ := set $names .name true -}}
{{- $_ := set $slots $slot .name -}}
{{- end -}}
{{- if not (hasKey $names .Values.default) -}}{{- fail (printf "default: there is no store %s" .Values.default) -}}{{- end -}}
{{- range .Values.partitions -}}
{{- range prepend (default (list) (default dict .ring).stores) .serviceGroupId -}}
{{- if and . (not (hasKey $names .)) -}}{{- fail (printf "partitions: there is no store %s" .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
