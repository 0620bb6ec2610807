"""What is known of machines that incidents blame, as limits take it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import ARRAY, Text, any_, exists, func, literal, or_, select

from app.actions.limits import APART, Case, Fleet
from app.actions.states import ActionState
from app.alerts.machines.inside import machine_of
from app.alerts.states import IncidentState
from app.analysis.diagnosis.causes.registry import KINDS, blames_machine
from app.db.models.alerts import AlertGroup, AlertIncident
from app.db.models.hosts import HostReading, MachineAction
from app.db.models.sessions import Job, Session
from app.db.scope import COUNTS_EVERYWHERE
from app.db.states import SessionState
from app.services.alerts.store import incident_of
from app.services.hosts.repairs import latest_repairs

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Mapping, Sequence

    from app.alerts.incidents import Incident
    from app.analysis.report.verdict import BlamedGpu, SuspectedCause
    from app.db.unit_of_work import Reads

# A node that no session named for so long is not counted among those that there are.
KNOWN_FOR: Final = timedelta(days=30)
# Older sessions do not count against a machine.
BLAMED_FOR: Final = timedelta(days=7)
# A session that waits longer for its analysis means that what is known is late.
BEHIND_AFTER: Final = timedelta(minutes=10)
# Incidents that are looked at, the oldest first, and sessions that are counted.
MOST_INCIDENTS: Final = 1000
MOST_SESSIONS: Final = 20_000

_MACHINES: Final = [name for name, kind in KINDS.items() if kind.blames_machine]


@dataclass(frozen=True, slots=True)
class Blamed:
    """A machine that incidents blame, with the one that says most of it."""

    case: Case
    incidents: tuple[Incident, ...]  # the oldest first
    jobs: Mapping[uuid.UUID, str]  # by incident
    gpus: tuple[str, ...]  # UUIDs where they are known, else their names there
    lost_each_hour: float | None


def fleet_of(tx: Reads, *, stopped: bool) -> Fleet:
    """Return what is known of all machines of a project."""
    # What is said about jobs takes no machine out.
    of_machines = MachineAction.hang.is_(None)
    is_out = (MachineAction.state.in_(ActionState.OUT), of_machines)
    taken = (
        select(MachineAction.host, func.max(MachineAction.ordered_at))
        .where(MachineAction.ordered_at > tx.now - APART, of_machines)
        .group_by(MachineAction.host)
    )
    known = (HostReading.received_at > tx.now - KNOWN_FOR, HostReading.guessed.is_(False))
    nodes = select(func.count(HostReading.host.distinct())).where(*known)
    waiting = exists().where(
        Session.state.in_((SessionState.QUEUED, SessionState.ANALYZING)),
        Session.received_at < tx.now - BEHIND_AFTER,
    )
    everywhere = select(
        select(func.count(MachineAction.host.distinct())).where(*is_out).scalar_subquery(),
        nodes.scalar_subquery(),
    )
    out_everywhere, nodes_everywhere = tx.session.execute(
        everywhere, execution_options=COUNTS_EVERYWHERE
    ).one()
    return Fleet(
        now=tx.now,
        nodes=tx.session.execute(nodes).scalar_one(),
        out=frozenset(
            tx.session.execute(select(MachineAction.host).where(*is_out).distinct()).scalars()
        ),
        taken_at={host: at for host, at in tx.session.execute(taken) if at is not None},
        stopped=stopped,
        behind=tx.session.execute(select(Session.id).where(waiting).limit(1)).first() is not None,
        out_everywhere=out_everywhere,
        nodes_everywhere=nodes_everywhere,
    )


def blamed_machines(tx: Reads, only: Collection[str] | None = None) -> list[Blamed]:
    """Return the machines that open incidents blame, the one blamed first at first.

    Parameters
    ----------
    only : collection of str, optional
        Only these.
    """
    by_host: dict[str, list[tuple[Incident, str]]] = {}
    for incident, job in _incidents(tx):
        host = machine_of(incident)
        if host and (only is None or host in only):
            by_host.setdefault(host, []).append((incident, job))
    since = _since(tx, list(by_host))
    sessions = _sessions(tx, since)
    put_back = _put_back(tx, list(by_host))
    known = _known(tx, list(by_host))
    return [
        _blamed(host, found, host in known, sessions.get(host, 0), put_back.get(host))
        for host, found in by_host.items()
    ]


def _incidents(tx: Reads) -> list[tuple[Incident, str]]:
    document = AlertIncident.document
    rows = tx.session.execute(
        select(AlertIncident, Job.name)
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .where(
            AlertIncident.state.in_(IncidentState.TOLD),
            document["where"].astext != "",
            or_(
                document["cause"].astext.in_(_MACHINES),
                document["notice"]["cause"].astext.in_(_MACHINES),
            ),
        )
        .order_by(AlertIncident.fired_at, AlertIncident.id)
        .limit(MOST_INCIDENTS)
    )
    return [(incident_of(row), job) for row, job in rows]


def _blamed(
    host: str,
    found: Sequence[tuple[Incident, str]],
    known: bool,  # noqa: FBT001 - one of many facts
    sessions: int,
    put_back_at: datetime | None,
) -> Blamed:
    incidents = tuple(incident for incident, _ in found)
    of_facts = [
        (one.facts, cause)
        for one in incidents
        if one.facts is not None
        for cause in one.facts.causes
        if host in cause.where and blames_machine(cause.cause)
    ]
    # The surest says it, as of its own session.
    best = max(of_facts, key=lambda pair: pair[1].confidence or 0.0, default=None)
    facts, cause = best or (None, None)
    return Blamed(
        case=Case(
            node=host,
            guessed=any(one.facts is not None and one.facts.guesses(host) for one in incidents),
            known=known,
            in_hand=any(one.state is not IncidentState.FIRING for one in incidents),
            measured_at=None if facts is None else facts.received_at,
            confidence=None if cause is None else cause.confidence,
            sessions=sessions,
            put_back_at=put_back_at,
        ),
        incidents=incidents,
        jobs={incident.id: job for incident, job in found},
        gpus=() if cause is None else _gpus(cause, host),
        lost_each_hour=None if facts is None else facts.lost_each_hour,
    )


def _gpus(cause: SuspectedCause, host: str) -> tuple[str, ...]:
    names = (_name(gpu) for gpu in cause.gpus if gpu.host == host)
    return tuple(dict.fromkeys(name for name in names if name))


def _name(gpu: BlamedGpu) -> str | None:
    return gpu.uuid or gpu.gpu


def _listed(hosts: Collection[str]) -> object:
    return any_(literal(list(hosts), ARRAY(Text)))


def _since(tx: Reads, hosts: Collection[str]) -> Mapping[str, datetime]:
    """Return from when on sessions count against each host: not what a repair may have ended."""
    since = dict.fromkeys(hosts, tx.now - BLAMED_FOR)
    for host, repair in latest_repairs(tx, hosts).items():
        since[host] = max(since[host], repair.at)
    for host, at in _put_back(tx, hosts).items():
        since[host] = max(since[host], at)
    return since


def _sessions(tx: Reads, since: Mapping[str, datetime]) -> Mapping[str, int]:
    """Return how many sessions with a verdict blame each host, by its own name."""
    if not since:
        return {}
    rows = tx.session.execute(
        select(HostReading.host, HostReading.received_at)
        .where(
            HostReading.host == _listed(since),
            HostReading.cause.is_not(None),
            HostReading.guessed.is_(False),
            HostReading.received_at > tx.now - BLAMED_FOR,
        )
        .order_by(HostReading.received_at.desc())
        .limit(MOST_SESSIONS)
    )
    counts: dict[str, int] = {}
    for host, received_at in rows:
        if received_at > since[host]:
            counts[host] = counts.get(host, 0) + 1
    return counts


def _known(tx: Reads, hosts: Collection[str]) -> frozenset[str]:
    """Return those on which sessions ran under their own names."""
    rows = tx.session.execute(
        select(HostReading.host)
        .where(
            HostReading.host == _listed(hosts),
            HostReading.guessed.is_(False),
            HostReading.received_at > tx.now - KNOWN_FOR,
        )
        .distinct()
    )
    return frozenset(rows.scalars())


def _put_back(tx: Reads, hosts: Collection[str]) -> Mapping[str, datetime]:
    """Return when a person last put each host back."""
    rows = tx.session.execute(
        select(MachineAction.host, func.max(MachineAction.release_ordered_at))
        .where(
            MachineAction.host == _listed(hosts),
            MachineAction.released_by.is_not(None),
            MachineAction.release_ordered_at.is_not(None),
        )
        .group_by(MachineAction.host)
    )
    return {host: at for host, at in rows if at is not None}
