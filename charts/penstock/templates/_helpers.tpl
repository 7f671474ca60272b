{{/* Prefix of every object's name: the release's, or nameOverride. Names of Services begin with a letter and have no
dots; names of releases may begin with a digit and have dots. */}}
{{- define "penstock.prefix" -}}
{{- $prefix := .Values.nameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" $prefix) -}}
{{- fail (printf "nameOverride: missing; the release's name %q cannot begin the name of a Service, which has letters, digits and hyphens and begins with a letter" .Release.Name) -}}
{{- end -}}
{{- $prefix -}}
{{- end }}

{{/* Name of the operator's own objects. */}}
{{- define "penstock.operator" -}}
{{ include "penstock.prefix" . }}-operator
{{- end }}

{{/* Name of the operator's ServiceAccount. */}}
{{- define "penstock.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "penstock.operator" .) -}}
{{- else -}}
{{- required "serviceAccount.name: missing; with serviceAccount.create=false, name the account that exists" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* Selector of the operator's pods. It must not change, because a Deployment's selector is immutable. */}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{/* The chart's own labels of every object. */}}
{{- define "penstock.ownLabels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of every object of this chart: extraLabels add to the chart's own and override none. */}}
{{- define "penstock.labels" -}}
{{- merge (include "penstock.ownLabels" . | fromYaml) (omit .Values.extraLabels "app.kubernetes.io/component") | toYaml -}}
{{- end }}

{{/* Labels of the operator's Deployment and pods. */}}
{{- define "penstock.operatorLabels" -}}
{{ include "penstock.labels" . }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Full name of an image. Call with (list $ .Values.images.router). A digest takes precedence over a tag. */}}
{{- define "penstock.image" -}}
{{- $root := first . -}}{{- $image := last . -}}
{{- $registry := $image.registry | default $root.Values.images.registry -}}
{{- $tag := $image.tag | default $root.Values.images.tag | default $root.Chart.AppVersion -}}
{{- with $registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- end }}

{{/* "true" if a monitoring object is enabled: true, or auto and the cluster has its CRD. Call with
(list . .Values.monitoring.podMonitor "PodMonitor"). Not every cluster with one of these CRDs has the others. */}}
{{- define "penstock.monitoringEnabled" -}}
{{- $root := index . 0 -}}{{- $enabled := index . 1 | toString -}}
{{- $kind := printf "monitoring.coreos.com/v1/%s" (index . 2) -}}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") ($root.Capabilities.APIVersions.Has $kind)) -}}
true
{{- end -}}
{{- end }}
