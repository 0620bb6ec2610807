"""Page of an empty fleet: how to connect the first job, and which steps have succeeded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.errors import JOB_FORBIDDEN, ForbiddenError, UnauthenticatedError
from app.installation.readiness import InstallationStatus
from app.jobs.connect import LAUNCHERS, WAYS, Target
from app.sessions.arriving import Arrivals

_REFUSALS: Final = {
    UnauthenticatedError.code: "401, token unknown. Set PACELINE_TOKEN on every host.",
    ForbiddenError.code: "403, the token may not send. Create one with the scope ingest.",
    JOB_FORBIDDEN: "403, the token is for other jobs. Create one for this job.",
}


@dataclass(frozen=True, slots=True)
class Tab:
    """A tab of code blocks and an explanation."""

    name: str
    title: str
    blocks: tuple[str, ...]
    prose: str


def way_tabs(server: str) -> tuple[Tab, ...]:
    """Return a tab for each way to connect a job to a server."""
    target = Target(server)
    return tuple(Tab(way.name, way.title, way.blocks(target), way.prose) for way in WAYS.values())


def launcher_tabs(server: str) -> tuple[Tab, ...]:
    """Return a tab for each launcher."""
    target = Target(server)
    return tuple(
        Tab(launcher.name, launcher.title, (launcher.block(target),), "")
        for launcher in LAUNCHERS.values()
    )


@dataclass(frozen=True, slots=True)
class Check:
    """A step on the way to a first verdict."""

    mark: str  # ``done``, ``warn`` or ``pending``
    words: str
    note: str = ""  # how to fix it
    value: str = ""  # shown next to it
    at: datetime | None = None  # time of the event, shown instead of `value`


@dataclass(frozen=True, slots=True)
class Arriving:
    """Steps of connecting a first job, in their order."""

    title: str
    checks: tuple[Check, ...]


def arriving(
    server: str, status: InstallationStatus, arrivals: Arrivals, *, guarded: bool
) -> Arriving:
    """Return the steps of connecting a first job and their state."""
    checks = [Check("done", "Server answers", value=server)]
    if alive := sum(worker.alive for worker in status.workers):
        checks.append(Check("done", "Workers ready", value=f"{alive} of {len(status.workers)}"))
    else:
        checks.append(Check("warn", "No worker is ready", "Sessions wait until one starts."))
    if guarded and arrivals.token_at is None:
        how = f"paceline token create --project {arrivals.project} --scope ingest --job JOB NAME"
        checks.append(Check("warn", "No token has the scope ingest", f"Create one: {how}"))
    elif guarded:
        checks.append(Check("done", "Token created, scope ingest", at=arrivals.token_at))
    if arrivals.refused is not None:
        code, at = arrivals.refused.code, arrivals.refused.at
        if code in _REFUSALS:
            checks.append(Check("warn", "A sender was refused", _REFUSALS[code], at=at))
        else:
            note = f"{code}; Ingest health says which."
            checks.append(Check("warn", "A body was refused", note, at=at))
    to_fix = [check for check in checks if check.mark == "warn"]
    checks += [Check("pending", "First session", value="none yet"), Check("pending", "Verdict")]
    title = "What has arrived"
    if to_fix:
        more = f", and {len(to_fix) - 1} more" if len(to_fix) > 1 else ""
        first = to_fix[0].words
        title = f"To fix: {first[:1].lower()}{first[1:]}{more}"
    return Arriving(title, tuple(checks))
