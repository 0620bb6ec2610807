"""What the pages of ingest and of the installation say in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.dashboard.ui.format import age, byte_size, count, plural

if TYPE_CHECKING:
    from app.dashboard.ui.ranges import Range
    from app.services.ingest.read import IngestHealth
    from app.services.installation.overview import Overview


def ingest_heading(found: IngestHealth, about: Range) -> str:
    """Return what matters first about what arrives."""
    missing = [session for session in found.open if session.missing]
    if missing:
        one = missing[0]
        names = ", ".join(one.missing[:3])
        return (
            f"{one.job}, session {one.number} waits for {plural(len(one.missing), 'producer')}: "
            f"{names}"
        )
    if found.refusals:
        first = found.refusals[0]
        bodies = sum(one.bodies for one in found.refusals)
        words = "body was" if bodies == 1 else "bodies were"
        return f"{count(bodies)} {words} refused, most often {first.code}"
    if not found.sessions:
        return f"Nothing arrived in {about.words}"
    return (
        f"{plural(found.sessions, 'session')} of {plural(found.job_count, 'job')} arrived in "
        f"{about.words}, and nothing was refused"
    )


def installation_heading(found: Overview) -> str:
    """Return what matters first about the installation."""
    alive = [worker for worker in found.status.workers if worker.alive]
    if found.behind:
        return f"The schema is at {found.revision}, and this program needs {found.expected}"
    if not any("analysis" in worker.queues.split(",") for worker in alive):
        return "No live worker takes analyses"
    dead = sum(queue.dead for queue in found.queues)
    if dead:
        return f"{plural(dead, 'piece')} of work {'was' if dead == 1 else 'were'} given up"
    queued = sum(queue.queued for queue in found.queues)
    waits = max((queue.oldest_s for queue in found.queues if queue.oldest_s), default=0.0)
    behind = f", the oldest for {age(waits)}" if queued else ""
    return (
        f"{plural(len(alive), 'worker')} alive, {count(queued)} waiting{behind}, "
        f"{byte_size(found.database_bytes)} stored"
    )
