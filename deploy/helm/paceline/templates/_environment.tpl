{{/* A variable from a Secret: list root variable value-of-`secrets`. Nothing where its key is empty. */}}
{{- define "paceline.fromSecret" -}}
{{- $root := index . 0 -}}
{{- $secret := get $root.Values.secrets (index . 2) -}}
{{- if $secret.key -}}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ default $root.Values.existingSecret $secret.name }}
      key: {{ $secret.key }}
{{ end -}}
{{- end }}

{{/* Numbers of values are floats, and large ones would come out as 4e+06. */}}
{{- define "paceline.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end }}

{{/* What every process of the installation is told. */}}
{{- define "paceline.environment" -}}
{{- include "paceline.fromSecret" (list . "PACELINE_DATABASE_URL" "databaseUrl") -}}
{{- include "paceline.fromSecret" (list . "PACELINE_BROKER_URL" "brokerUrl") -}}
{{- include "paceline.fromSecret" (list . "PACELINE_SECRET_KEYS" "secretKeys") -}}
{{- include "paceline.fromSecret" (list . "PACELINE_BLOB_ACCESS_KEY_ID" "blobAccessKeyId") -}}
{{- include "paceline.fromSecret" (list . "PACELINE_BLOB_SECRET_ACCESS_KEY" "blobSecretAccessKey") -}}
- name: PACELINE_INSTANCE_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: PACELINE_EXTERNAL_URL
  value: {{ .Values.externalUrl | quote }}
{{- with .Values.objectStore.url }}
- name: PACELINE_BLOB_URL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.objectStore.endpoint }}
- name: PACELINE_BLOB_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.objectStore.region }}
- name: PACELINE_BLOB_REGION
  value: {{ . | quote }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ include "paceline.text" $value | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What only who answers requests needs. */}}
{{- define "paceline.environmentOfServers" -}}
{{- include "paceline.fromSecret" (list . "PACELINE_METRICS_TOKEN" "metricsToken") -}}
{{- include "paceline.fromSecret" (list . "PACELINE_OIDC_CLIENT_SECRET" "oidcClientSecret") -}}
- name: PACELINE_HOST
  value: {{ .Values.api.host | quote }}
{{- end }}
