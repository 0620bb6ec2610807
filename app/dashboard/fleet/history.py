"""What a job's history says in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from app.alerts.message import cause_name
from app.dashboard.ui.format import count, seconds, times
from app.dashboard.ui.moments import when
from app.services.history.axis import Measure

if TYPE_CHECKING:
    from datetime import datetime

    from app.services.alerts.onset import Onset
    from app.services.history.axis import JobChange
    from app.services.sessions.history import JobHistory


def history_finding(
    found: JobHistory, latest: tuple[int, float] | None, onset: Onset | None
) -> str:
    """Return the title of a job's slowdown over its sessions.

    Parameters
    ----------
    latest : (int, float) or None
        Number and slowdown of the latest session with a verdict.
    onset : Onset or None
        Since when the job has been slow; None where the latest session is not.
    """
    if latest is None or not found.verdicts:
        return "No session has a verdict yet"
    number, slowdown = latest
    if not found.slow:
        return f"Stragglers slow no session: none above {times(found.worst or slowdown)}"
    if onset is None:
        of_all = f"{count(found.slow)} of {count(found.verdicts)}"
        return f"{of_all} sessions were slow; session {number} is not"
    since = "the first session" if onset.was is None else f"session {onset.number}"
    return f"Slow since {since}: {times(slowdown)} in session {number}"


def change_text(change: JobChange, now: datetime) -> Markup:
    """Return a lasting change: ``Slower since 02:35 UTC, session 4: 1.01× → 1.38×``."""
    of_steps = change.measure is Measure.STEP_TIME
    said = seconds if of_steps else times
    what = "Steps longer" if of_steps else "Slower"
    if not change.slower:
        what = "Steps shorter" if of_steps else "Faster"
    text = Markup("{} since {}, session {}: {} → {}").format(
        what, when(change.at, now), change.number, said(change.before), said(change.after)
    )
    if change.cause is not None:
        cause = cause_name(change.cause).lower()
        text += f", {cause}" if change.slower else f", without {cause}"
    return text if change.mark is None else text + f"; last event before it: {change.mark}"
