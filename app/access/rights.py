"""Table of the right that each route requires; cookies of signed-in browsers.

A test checks that every route is in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import Response

from app.platform.identity import Right
from app.platform.settings import Settings


class Open(Enum):
    """Requirements of routes that belong to no project."""

    # public routes
    EVERYBODY = "everybody"
    # routes for the metrics token, or a principal with the right to read all projects
    METRICS = "metrics"
    # routes for administrators of all projects
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
    # routes by which jobs send data
    "POST /api/v1/jobs/{job}/sessions": _INGEST,
    f"PUT {_ATTEMPT}/chunks/{{producer}}/{{n}}": _INGEST,
    f"POST {_ATTEMPT}/chunks": _INGEST,
    f"POST {_ATTEMPT}/seal": _INGEST,
    "POST /api/v1/folders": _INGEST,
    "GET /api/v1/jobs/{job}/folders/{folder}": _INGEST,
    "PUT /api/v1/jobs/{job}/folders/{folder}/file": _INGEST,
    "POST /api/v1/jobs/{job}/folders/{folder}/seal": _INGEST,
    "POST /api/v1/jobs/{job}/attempts": _INGEST,
    "POST /api/v1/jobs/{job}/finish": _INGEST,
    "POST /api/v1/jobs/{job}/hangs": _INGEST,
    "GET /api/v1/jobs/{job}/hangs": _READ,
    "GET /api/v1/hangs/{hang}": _READ,
    "GET /api/v1/hang-uploads/{upload}": _READ,
    "POST /api/v1/jobs/{job}/attempts/{attempt}/pulse": _INGEST,
    "GET /api/v1/jobs/{job}/pulse": _READ,
    "GET /api/v1/jobs/{job}/pulse/map": _READ,
    "GET /api/v1/jobs/{job}/pulse/export": _READ,
    "GET /api/v1/jobs/{job}/pulse/notices": _READ,
    "POST /api/v1/jobs/{job}/recordings": _OPERATE,
    "GET /api/v1/jobs/{job}/recordings": _READ,
    "GET /api/v1/pulse": _READ,
    "PUT /api/v1/pulse": _OPERATE,
    # the control loop of a training job
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
    # events of a job: launchers and deployments send them with the job's own token
    "POST /mcp": _READ,
    "GET /api/v1/jobs": _READ,
    "GET /api/v1/jobs/{job}/history": _READ,
    "GET /api/v1/jobs/{job}/notes": _READ,
    "POST /api/v1/jobs/{job}/notes": _INGEST,
    "DELETE /api/v1/jobs/{job}/notes/{note}": _OPERATE,
    "GET /api/v1/events": _READ,
    "GET /api/v1/sessions/{session}/events": _READ,
    # the fleet
    "GET /api/v1/fleet/report": _READ,
    "GET /api/v1/views": _READ,
    # saved views of the user: reading the fleet is enough to save a view
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
    # nodes send probes with the token of their jobs
    "POST /api/v1/hosts/{host}/probes": _INGEST,
    "GET /api/v1/hosts/{host}/probe": _READ,
    # plans
    "POST /api/v1/plans": _OPERATE,
    "POST /api/v1/plans/of-session/{session}": _OPERATE,
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
    # Slack's signature authenticates the request, for the project of the channel with that secret
    "POST /api/v1/slack/interactions": Open.EVERYBODY,
    # actions on machines
    "GET /api/v1/actions": _READ,
    "GET /api/v1/actions/{machine_action}": _READ,
    "POST /api/v1/actions/{machine_action}/allow": _OPERATE,
    "POST /api/v1/actions/{machine_action}/decline": _OPERATE,
    "POST /api/v1/actions/{machine_action}/release": _OPERATE,
    "GET /api/v1/action-policies": _READ,
    "PUT /api/v1/action-policies": Right.ADMIN,
    "GET /api/v1/action-switch": _READ,
    "PUT /api/v1/action-switch": _OPERATE,
    "GET /api/v1/event-schemas": _READ,
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
    # sign-in and sign-out
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
    "GET /jobs/{job}/hangs.csv": _READ,
    "GET /jobs/{job}/live": _READ,
    "GET /jobs/{job}/pulse/{name}.csv": _READ,
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
    # incidents of all projects that the caller may read
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
    "GET /actions": _READ,
    "GET /actions.csv": _READ,
    "GET /actions-policies.csv": _READ,
    "GET /hosts": _READ,
    "GET /hosts.csv": _READ,
    "GET /hosts-not-blamed.csv": _READ,
    "GET /hosts/{host}": _READ,
    "GET /hosts/{host}/{name}.csv": _READ,
    "GET /jobs/{job}/tensor": _READ,
    "GET /jobs/{job}/tensor.csv": _READ,
    "GET /jobs/{job}/tensor/{group}": _READ,
    "GET /jobs/{job}/tensor/{group}/{name}": _READ,
    "GET /hangs/{hang}": _READ,
    "GET /hangs/{hang}/evidence.zip": _READ,
    "GET /hangs/{hang}/{name}.csv": _READ,
    "GET /rules": _READ,
    "GET /rules.csv": _READ,
    "GET /quotas": _READ,
    "GET /quotas.csv": _READ,
    "GET /retention": _READ,
    "GET /retention.csv": _READ,
    "GET /rules/{rule}": _READ,
}


# Browsers accept a cookie with this prefix only over TLS, for this host and all of its paths: a
# page of a sibling host name cannot replace it.
HOST_PREFIX: Final = "__Host-"


class BrowserCookie:
    """A cookie that scripts cannot read and other sites' forms do not send.

    Parameters
    ----------
    name : str
        The cookie's name; with `HOST_PREFIX` if the server is reached over TLS.
    settings : Settings
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self._secure = settings.served_over_tls
        self.name = f"{HOST_PREFIX}{name}" if self._secure else name

    def read(self, request: HTTPConnection) -> str | None:
        """Return the value of the cookie in a request."""
        return request.cookies.get(self.name)

    def give(self, response: Response, value: str, lasts: timedelta) -> None:
        """Set the cookie in a browser."""
        response.set_cookie(
            self.name,
            value,
            max_age=int(lasts.total_seconds()),
            path="/",
            httponly=True,
            # Not "strict": links from a chat, and the redirect from a provider, need the cookie.
            samesite="lax",
            secure=self._secure,
        )

    def drop(self, response: Response) -> None:
        """Delete the cookie in a browser."""
        response.delete_cookie(
            self.name, path="/", httponly=True, samesite="lax", secure=self._secure
        )


def session_cookie(settings: Settings) -> BrowserCookie:
    """Return the cookie of a signed-in browser."""
    return BrowserCookie("paceline_session", settings)


def known_cookie(settings: Settings) -> BrowserCookie:
    """Return the cookie of a browser in which a user has signed in with a password before."""
    return BrowserCookie("paceline_known", settings)


def pending_cookie(settings: Settings) -> BrowserCookie:
    """Return the cookie of a browser with a pending sign-in at a provider."""
    return BrowserCookie("paceline_sign_in", settings)
