"""What each route takes: one table, and a test that every route is in it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from app.access.principals import Right


class Open(Enum):
    """What routes take that are of no project."""

    # says nothing that anybody may not know
    EVERYBODY = "everybody"
    # of the installation: a token of its own, or the right to read everywhere
    METRICS = "metrics"
    # administers all projects
    INSTALLATION = "installation"


Need = Right | Open

_READ, _OPERATE, _INGEST = Right.READ, Right.OPERATE, Right.INGEST
_ATTEMPT: Final = "/api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}"

NEEDS: Final[Mapping[str, Need]] = {
    "GET /healthz": Open.EVERYBODY,
    "GET /readyz": Open.EVERYBODY,
    "GET /metrics": Open.METRICS,
    "GET /api/docs": Open.EVERYBODY,
    "GET /api/docs/{digest}.css": Open.EVERYBODY,
    "GET /static/{address:path}": Open.EVERYBODY,
    "GET /client": Open.EVERYBODY,
    "GET /client/": Open.EVERYBODY,
    "GET /client/{name}": Open.EVERYBODY,
    "GET /docs": Open.EVERYBODY,
    "GET /docs/{address:path}": Open.EVERYBODY,
    # sending
    "POST /api/v1/jobs/{job}/sessions": _INGEST,
    f"PUT {_ATTEMPT}/chunks/{{producer}}/{{n}}": _INGEST,
    f"POST {_ATTEMPT}/seal": _INGEST,
    "POST /api/v1/jobs/{job}/attempts": _INGEST,
    "POST /api/v1/jobs/{job}/finish": _INGEST,
    # a training job's own loop
    "POST /api/v1/jobs/{job}/tp/{group}/timings": _INGEST,
    "GET /api/v1/jobs/{job}/tp/{group}/plan": _INGEST,
    "POST /api/v1/jobs/{job}/tp/{group}/plan/{version}/ack": _INGEST,
    "GET /api/v1/jobs/{job}/tp/mode": _READ,
    "PUT /api/v1/jobs/{job}/tp/mode": _OPERATE,
    # sessions
    "GET /api/v1/search": _READ,
    "GET /api/v1/sessions": _READ,
    "GET /api/v1/sessions/{session}": _READ,
    "GET /api/v1/sessions/{session}/report": _READ,
    "GET /api/v1/sessions/{session}/heatmaps": _READ,
    "GET /api/v1/sessions/{session}/timeline": _READ,
    "POST /api/v1/sessions/{session}/what-if": _READ,
    "GET /api/v1/sessions/{session}/compare/{other}": _READ,
    "POST /api/v1/sessions/{session}/analyze": _OPERATE,
    "POST /api/v1/sessions/analyze": _OPERATE,
    "PUT /api/v1/sessions/{session}/pin": _OPERATE,
    "DELETE /api/v1/sessions/{session}/pin": _OPERATE,
    "DELETE /api/v1/sessions/{session}": _OPERATE,
    "PATCH /api/v1/jobs/{job}": _OPERATE,
    "DELETE /api/v1/jobs/{job}": _OPERATE,
    "GET /api/v1/sessions/{session}/export": _READ,
    "GET /api/v1/jobs/{job}/export": _READ,
    "GET /api/v1/export": _READ,
    "GET /api/v1/retention": _READ,
    "PUT /api/v1/retention": _OPERATE,
    "POST /api/v1/retention/preview": _READ,
    "POST /api/v1/sessions/{session}/fixes": _OPERATE,
    "DELETE /api/v1/sessions/{session}/fixes/{action}": _OPERATE,
    "GET /api/v1/fixes": _READ,
    # what happened: launchers and deployments say so with the job's own token
    "GET /api/v1/jobs/{job}/history": _READ,
    "GET /api/v1/jobs/{job}/notes": _READ,
    "POST /api/v1/jobs/{job}/notes": _INGEST,
    "DELETE /api/v1/jobs/{job}/notes/{note}": _OPERATE,
    "GET /api/v1/events": _READ,
    "GET /api/v1/sessions/{session}/events": _READ,
    # the fleet
    "GET /api/v1/fleet/report": _READ,
    "GET /api/v1/views": _READ,
    # views are one's own: who may look at the fleet may name what they look at
    "POST /api/v1/views": _READ,
    "GET /api/v1/views/{view}": _READ,
    "PATCH /api/v1/views/{view}": _READ,
    "DELETE /api/v1/views/{view}": _READ,
    "GET /api/v1/ingest": _READ,
    "GET /api/v1/installation": Open.INSTALLATION,
    # hosts
    "GET /api/v1/hosts": _READ,
    "GET /api/v1/hosts/{host}": _READ,
    "POST /api/v1/hosts/{host}/repairs": _OPERATE,
    # plans
    "POST /api/v1/plans": _OPERATE,
    "GET /api/v1/plans": _READ,
    "GET /api/v1/plans/{plan}": _READ,
    "POST /api/v1/plans/{plan}/cancel": _OPERATE,
    "POST /api/v1/mitigation/plan": _READ,
    # alerts
    "GET /api/v1/alert-rules": _READ,
    "POST /api/v1/alert-rules": _OPERATE,
    "POST /api/v1/alert-rules/preview": _READ,
    "GET /api/v1/alert-rules/{rule}": _READ,
    "PUT /api/v1/alert-rules/{rule}": _OPERATE,
    "DELETE /api/v1/alert-rules/{rule}": _OPERATE,
    "GET /api/v1/channels": _READ,
    "POST /api/v1/channels": _OPERATE,
    "POST /api/v1/channels/reseal": Open.INSTALLATION,
    "GET /api/v1/channels/{channel}": _READ,
    "PATCH /api/v1/channels/{channel}": _OPERATE,
    "DELETE /api/v1/channels/{channel}": _OPERATE,
    "POST /api/v1/channels/{channel}/test": _OPERATE,
    "GET /api/v1/incidents": _READ,
    "GET /api/v1/incidents/{incident}": _READ,
    "POST /api/v1/incidents/orders": _OPERATE,
    "POST /api/v1/incidents/{incident}/ack": _OPERATE,
    "DELETE /api/v1/incidents/{incident}/ack": _OPERATE,
    "POST /api/v1/incidents/{incident}/reopen": _OPERATE,
    "POST /api/v1/incidents/{incident}/comments": _OPERATE,
    "PUT /api/v1/incidents/{incident}/assignee": _OPERATE,
    "POST /api/v1/incidents/{incident}/silence": _OPERATE,
    "DELETE /api/v1/incidents/{incident}/silence": _OPERATE,
    "POST /api/v1/incidents/{incident}/resolve": _OPERATE,
    "GET /api/v1/deliveries": _READ,
    "POST /api/v1/deliveries/{delivery}/replay": _OPERATE,
    # access
    "GET /api/v1/tokens": Open.INSTALLATION,
    "POST /api/v1/tokens": Open.INSTALLATION,
    "DELETE /api/v1/tokens/{name}": Open.INSTALLATION,
    "POST /api/v1/tokens/{name}/renew": Open.INSTALLATION,
    "GET /api/v1/people": Open.INSTALLATION,
    "PATCH /api/v1/people/{person}": Open.INSTALLATION,
    "PUT /api/v1/people/{person}/role": Open.INSTALLATION,
    "DELETE /api/v1/people/{person}": Open.INSTALLATION,
    "GET /api/v1/projects": _READ,
    "POST /api/v1/projects": Open.INSTALLATION,
    "DELETE /api/v1/projects/{name}": Open.INSTALLATION,
    "POST /api/v1/jobs/{job}/move": Open.INSTALLATION,
    "GET /api/v1/audit": Open.INSTALLATION,
    "GET /api/v1/access/incidents": Open.INSTALLATION,
    # signing in and out
    "GET /sign-in": Open.EVERYBODY,
    "POST /sign-in": Open.EVERYBODY,
    "POST /sign-out": Open.EVERYBODY,
    "GET /sign-in/provider": Open.EVERYBODY,
    "GET /sign-in/provider/callback": Open.EVERYBODY,
    # pages
    "GET /access": Open.INSTALLATION,
    "GET /access/audit": Open.INSTALLATION,
    "GET /access/{name}.csv": Open.INSTALLATION,
    "GET /access/incidents": Open.INSTALLATION,
    "GET /access/incidents.csv": Open.INSTALLATION,
    "GET /": _READ,
    "GET /jobs/{job}": _READ,
    "GET /jobs/{job}/sessions.csv": _READ,
    "GET /jobs/{job}/marks.csv": _READ,
    "GET /jobs/{job}/fixes.csv": _READ,
    "GET /fleet/{name}.csv": _READ,
    "GET /sessions/{session}": _READ,
    "GET /sessions/{session}/{name}.csv": _READ,
    "GET /plans": _READ,
    "GET /plans.csv": _READ,
    "GET /plans/{plan}": _READ,
    "GET /plans/{plan}/{name}": _READ,
    "GET /views/{view}": _READ,
    "GET /incidents": _READ,
    "GET /incidents.csv": _READ,
    # of the projects that whoever asks may read
    "GET /incidents/everywhere": _READ,
    "GET /incidents/everywhere.csv": _READ,
    "GET /incidents/{incident}": _READ,
    "GET /incidents/{incident}/{name}.csv": _READ,
    "GET /incidents/{incident}/evidence": _READ,
    "GET /incidents/{incident}/evidence.zip": _READ,
    "GET /channels": _READ,
    "GET /channels.csv": _READ,
    "GET /channels-undelivered.csv": _READ,
    "GET /channels/new": _OPERATE,
    "GET /channels/{channel}": _READ,
    "GET /compare": _READ,
    "GET /compare/times": _READ,
    "GET /compare/times/{name}.csv": _READ,
    "GET /compare/{name}.csv": _READ,
    "GET /report": _READ,
    "GET /ingest": _READ,
    "GET /ingest/{name}.csv": _READ,
    "GET /installation": Open.INSTALLATION,
    "GET /installation/{name}.csv": Open.INSTALLATION,
    "GET /report/{name}.csv": _READ,
    "GET /hosts": _READ,
    "GET /hosts.csv": _READ,
    "GET /hosts-not-blamed.csv": _READ,
    "GET /hosts/{host}": _READ,
    "GET /hosts/{host}/{name}.csv": _READ,
    "GET /jobs/{job}/tensor": _READ,
    "GET /jobs/{job}/tensor.csv": _READ,
    "GET /jobs/{job}/tensor/{group}": _READ,
    "GET /jobs/{job}/tensor/{group}/{name}": _READ,
    "GET /rules": _READ,
    "GET /rules.csv": _READ,
    "GET /quotas": _READ,
    "GET /quotas.csv": _READ,
    "GET /retention": _READ,
    "GET /retention.csv": _READ,
    "GET /rules/{rule}": _READ,
}
