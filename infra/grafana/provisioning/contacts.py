"""Contact points, notification policies and the message template of alerts."""

from __future__ import annotations

from typing import Literal

from drumline.infra.grafana.model import Json

Contact = Literal["webhook", "slack", "pagerduty"]
CONTACTS: tuple[Contact, ...] = ("webhook", "slack", "pagerduty")
RECEIVER = "drumline-on-call"
#: Variables of Grafana's environment from which files take secrets and addresses.
ADDRESSES: dict[Contact, str] = {kind: f"DRUMLINE_ALERT_{kind.upper()}" for kind in CONTACTS}
TITLE, MESSAGE = '{{ template "drumline.title" . }}', '{{ template "drumline.message" . }}'
#: Sets $shown for $alert of $alerts. A rank at `critical` has two alerts: the message has one of them, the critical one
#: while both fire; and a rank that falls to `warning` is not over.
_SHOWN = """
{{ $shown := true }}{{ if $alert.Annotations.level }}{{ range $alerts -}}
{{ if and (eq .Labels.job $alert.Labels.job) (eq .Labels.run $alert.Labels.run) (eq .Labels.rank $alert.Labels.rank)
  (eq .Labels.host $alert.Labels.host) (ne .Labels.severity $alert.Labels.severity) -}}
{{ if eq $alert.Labels.severity "critical" }}{{ if eq $alert.Status "resolved" }}{{ $shown = false }}{{ end -}}
{{ else if and (eq .Status "firing") (eq $alert.Status "firing") }}{{ $shown = false }}{{ end -}}
{{ end }}{{ end }}{{ end -}}
""".strip()
TEMPLATE = """
{{ define "drumline.title" -}}
{{ $alerts := .Alerts }}{{ $marks := "" }}{{ range $alert := $alerts -}}
SHOWN
{{ if $shown }}{{ $marks = printf "%s+" $marks }}{{ end }}{{ end -}}
[{{ .Status | toUpper }}] {{ .CommonLabels.alertname }}{{ with .CommonLabels.job }} {{ . }}{{ end }} ({{ len $marks }})
{{- end }}
{{ define "drumline.owner" -}}
{{ $team := or .Labels.job_team "none" }}{{ $user := or .Labels.job_user "none" -}}
{{ if or (ne $team "none") (ne $user "none") }} ({{ if ne $team "none" }}team {{ $team }}{{ end -}}
{{ if and (ne $team "none") (ne $user "none") }}, {{ end }}{{ if ne $user "none" }}user {{ $user }}{{ end }}){{ end }}
{{- end }}
{{ define "drumline.message" -}}
{{ $alerts := .Alerts }}{{ range $alert := $alerts -}}
SHOWN
{{ if $shown -}}
{{ if eq .Status "resolved" }}Over: {{ end }}{{ .Annotations.summary }}
{{ .Annotations.description }}
Check: {{ .Annotations.check }}
Do: {{ .Annotations.act }}
If you cannot: {{ .Annotations.escalate }}{{ template "drumline.owner" . }}. More: {{ .Annotations.runbook_url }}
{{ with .Annotations.page }}Its page: {{ . }}
{{ end -}}
{{ .Annotations.dashboard }}&from={{ (.StartsAt.Add -3600000000000).UnixMilli }}&to={{ if eq .Status "resolved" -}}
{{ .EndsAt.UnixMilli }}{{ else }}now{{ end }}
{{ end }}{{ end -}}
{{- end }}
""".strip().replace("SHOWN", _SHOWN)


def receiver(kind: Contact, address: str) -> Json:
    """Return a receiver of the contact point. `address`: URL or PagerDuty's integration key, or its variable."""
    settings: dict[Contact, Json] = {
        "webhook": {"url": address, "httpMethod": "POST", "title": TITLE, "message": MESSAGE},
        "slack": {"url": address, "title": TITLE, "text": MESSAGE},
        "pagerduty": {
            "integrationKey": address,
            "severity": "{{ with .CommonLabels.severity }}{{ . }}{{ else }}critical{{ end }}",
            "summary": TITLE,
            "details": {"message": MESSAGE},
        },
    }
    return {"uid": f"drumline-{kind}", "type": kind, "settings": settings[kind], "disableResolveMessage": False}


def policies() -> Json:
    """Return the policy tree: one message for a job and rule, with all its ranks; critical alerts do not wait."""
    return {
        "receiver": RECEIVER,
        "group_by": ["grafana_folder", "alertname", "job", "run"],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "12h",
        "routes": [
            {  # with both severities, so that one that rises stays one message and is resolved once
                "receiver": RECEIVER,
                "object_matchers": [["team", "=", "drumline"], ["alertname", "=", "Straggler"]],
                "group_wait": "5s",
                "group_interval": "1m",
                "repeat_interval": "4h",
            },
            {
                "receiver": RECEIVER,
                "object_matchers": [["team", "=", "drumline"], ["severity", "=", "critical"]],
                "group_wait": "5s",
                "group_interval": "1m",
                "repeat_interval": "1h",
            },
        ],
    }
