{{- define "paceline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* Short enough for what is put behind it. */}}
{{- define "paceline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What finds the pods of a component: list root component. */}}
{{- define "paceline.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "paceline.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "paceline.labels" -}}
{{- $root := index . 0 -}}
{{ include "paceline.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{- define "paceline.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end }}

{{- define "paceline.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "paceline.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* Hooks run before anything else of the release is there: what one needs is a hook as well. */}}
{{- define "paceline.migrationServiceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- printf "%s-migrate" (include "paceline.fullname" .) -}}
{{- else -}}
{{- include "paceline.serviceAccount" . -}}
{{- end -}}
{{- end }}

{{- define "paceline.beforeMigration" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: "-10"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* The host that people call. */}}
{{- define "paceline.host" -}}
{{- (urlParse .Values.externalUrl).hostname -}}
{{- end }}
