{{/* What the pods of all components have in common. */}}
{{- define "paceline.pod" -}}
automountServiceAccountToken: false
# Of a Service called paceline, Kubernetes would set PACELINE_PORT.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with .Values.runAsUser }}
  runAsUser: {{ int64 . }}
  runAsGroup: {{ int64 . }}
  fsGroup: {{ int64 . }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "paceline.container" -}}
image: {{ include "paceline.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* Where pods go: list root component values-of-the-component. */}}
{{- define "paceline.placement" -}}
{{- $values := index . 2 -}}
# Pods are spread over nodes where that is possible.
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "paceline.selector" (list (index . 0) (index . 1)) | nindent 8 }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Where the image writes: list root limit-of-tmp limit-of-/var/lib/paceline. */}}
{{- define "paceline.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ index . 1 }}
- name: data
  emptyDir:
    sizeLimit: {{ index . 2 }}
{{- with (index . 0).Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "paceline.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
- name: data
  mountPath: /var/lib/paceline
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A scaler by processor time: list root component values-of-`autoscaling` path. */}}
{{- define "paceline.autoscaler" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
{{- include "paceline.bounds" (list $values (index . 3)) -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "paceline.fullname" $root }}-{{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "paceline.labels" (list $root (index . 1)) | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "paceline.fullname" $root }}-{{ index . 1 }}
  minReplicas: {{ $values.minReplicas }}
  maxReplicas: {{ $values.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ $values.targetCPUUtilizationPercentage }}
{{- end }}

{{/* What a schema cannot say: list values path. */}}
{{- define "paceline.bounds" -}}
{{- $values := index . 0 -}}
{{- if lt (int $values.maxReplicas) (int $values.minReplicas) -}}
{{- fail (printf "%s.maxReplicas: %d is less than minReplicas, %d" (index . 1) (int $values.maxReplicas) (int $values.minReplicas)) -}}
{{- end -}}
{{- end }}

{{- define "paceline.disruptionBudget" -}}
{{- $root := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "paceline.fullname" $root }}-{{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "paceline.labels" . | nindent 4 }}
spec:
  # One at a time; a single replica keeps no node from being drained.
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "paceline.selector" . | nindent 6 }}
{{- end }}
