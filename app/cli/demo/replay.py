"""The history of one site of the demo: ``python -m app.cli.demo.replay --site north``.

Each session is synthesized, received, analyzed and compared with the alert rules by the use cases
that do so for every session, in the order of time; only the time of the transactions is set to the
session's. Some jobs of today come first. The history is written in its own process, so that the
server answers requests for pages meanwhile.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from app.access.models import DEFAULT_PROJECT_ID
from app.analysis.synthesis.fleet_history import SITES, PlannedSession, runs
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.formats.own import PARQUET
from app.bootstrap import build
from app.cli.demo.acts import ACTS, Act, ActContext
from app.incidents.evaluate import look_at_group
from app.incidents.models.rules import DEMO_LABELS
from app.incidents.models.tables import AlertGroup
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.states import SessionState
from app.platform.identity import LOCAL
from app.platform.logs import configure_logging
from app.platform.processes import follow_lifeline
from app.platform.settings import Settings
from app.platform.tasks.runs import LeaseKeeper, claim
from app.sessions.body import Body
from app.sessions.models.tables import Session
from app.sessions.receive import receive_session

if TYPE_CHECKING:
    import uuid


# Delay between the last operation of a session and the reception of the session.
_SENT_IN: Final = timedelta(seconds=20)
_LOOK_S: Final = 0.1
# Jobs that began at most this time before the end of the history are jobs of today, hours.
TODAY_H: Final = 40.0
# Owner of the jobs of each team.
OWNERS: Final[Mapping[str, str]] = {
    "pretraining": "foundation",
    "research": "foundation",
    "moe": "foundation",
    "long-context": "applied",
    "multimodal": "applied",
}


@dataclass(frozen=True, slots=True)
class _Site:
    """Context of writing the history of a site."""

    container: Container
    keeper: LeaseKeeper
    jobs: frozenset[str]
    until: datetime
    directory: Path
    published: list[uuid.UUID]  # task runs that the last transaction asked for

    def at(self, hours: float) -> tuple[Container, datetime]:
        moment = self.until - timedelta(hours=hours)
        return self.container.at(moment), moment


def write_history(container: Container, site: str, until: datetime) -> int:
    """Write the history of a site; return the number of its sessions.

    Parameters
    ----------
    container : Container
        Container of a project that has none of the jobs yet.
    until : datetime
        End of the history.
    """
    published: list[uuid.UUID] = []
    # No task is published: this process runs the analyses itself, in order and at the sessions'
    # times.
    quiet = replace(container, publish=lambda run, _kind: published.append(run))
    keeper = LeaseKeeper(container)
    latest: dict[str, uuid.UUID] = {}
    sessions = [planned for run in runs() if run.site == site for planned in run.sessions()]
    acts = [act for act in ACTS if act.site == site]
    events: list[PlannedSession | Act] = [*sessions, *acts]
    events.sort(key=lambda event: (not _is_first(event), -event.at_h))
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-demo-") as directory:
            jobs = frozenset(session.run.name for session in sessions)
            context = _Site(quiet, keeper, jobs, until, Path(directory), published)
            for event in events:
                _let_time_pass(context, event.at_h)
                if isinstance(event, Act):
                    event.perform(ActContext(*context.at(event.at_h), latest))
                else:
                    latest[event.run.name] = _send(context, event)
            _let_time_pass(context, 0.0)
    finally:
        keeper.stop()
    return len(sessions)


def _is_first(event: PlannedSession | Act) -> bool:
    """Return whether a session belongs to a job of today, which is written first.

    No act refers to these jobs, and no later job runs on their hosts.
    """
    return isinstance(event, PlannedSession) and event.run.from_h <= TODAY_H


def labels_of(session: PlannedSession) -> Mapping[str, str]:
    """Return the labels of a session."""
    team = session.run.team
    # The alert rule for missing data excludes jobs with these labels, because the history ends.
    return {"team": team, "owner": OWNERS[team], "site": session.run.site, **DEMO_LABELS}


def _send(site: _Site, session: PlannedSession) -> uuid.UUID:
    """Receive and analyze a session at its time; return its id."""
    container, moment = site.at(session.at_h)
    end_ns = int((moment - _SENT_IN).timestamp() * 1e9)
    trace = session.synthesize(end_ns, labels_of(session))
    content, media_type = to_parquet(trace), PARQUET.media_types[0]
    path = site.directory / "trace.parquet"
    path.write_bytes(content)
    digest = hashlib.sha256(content).digest()
    body = Body(path, len(content), digest, media_type, trace.meta)
    site.published.clear()
    receipt = receive_session(container, session.run.name, body)
    for run_id in site.published:
        _analyze(site, container, run_id, receipt.session)
    return receipt.session


def _let_time_pass(site: _Site, until_h: float) -> None:
    """Evaluate the time-based rules as the sweeper would have done up to a time."""
    until = site.until - timedelta(hours=until_h)
    looks = (
        select(AlertGroup.id, AlertGroup.look_at)
        .join(Job, Job.id == AlertGroup.job_id)
        .where(Job.name.in_(site.jobs), AlertGroup.look_at <= until)
        .order_by(AlertGroup.look_at, AlertGroup.id)
        .limit(1)
    )
    while True:
        with site.container.reading() as tx:
            due = tx.session.execute(looks).one_or_none()
        if due is None:
            return
        look_at_group(site.container.at(due.look_at), due.id)


def _analyze(site: _Site, container: Container, run_id: uuid.UUID, session: uuid.UUID) -> None:
    taken = claim(site.container, run_id)
    if taken is None:
        # The sweeper has published the task again and a worker has run it, because this process was
        # slow.
        _wait_for(site.container, session)
        return
    with site.keeper.hold(taken):
        container.kinds[taken.kind].run(container, taken)


def _wait_for(container: Container, session: uuid.UUID) -> None:
    while True:
        with container.reading() as tx:
            state = tx.session.execute(
                select(Session.state).where(Session.id == session)
            ).scalar_one()
        if state in SessionState.REPORTED or state in SessionState.UNREPORTED:
            return
        time.sleep(_LOOK_S)


def main() -> None:
    """Write the history of a site; the configuration comes from the environment."""
    parser = argparse.ArgumentParser(prog="python -m app.cli.demo.replay", description=__doc__)
    parser.add_argument("--site", choices=SITES, required=True)
    parser.add_argument("--until", type=datetime.fromisoformat, required=True)
    arguments = parser.parse_args()
    follow_lifeline()
    settings = Settings()
    configure_logging(json=settings.log_json, level=settings.log_level)
    container = build(settings, application_name=f"paceline demo {arguments.site}")
    try:
        of_demo = container.within(DEFAULT_PROJECT_ID, LOCAL)
        write_history(of_demo, arguments.site, arguments.until)
    finally:
        container.close()


if __name__ == "__main__":
    main()
