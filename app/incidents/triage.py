"""What the hardware team gets of an incident: what was measured, seen and done, with a picture."""

from __future__ import annotations

import csv
import io
import json
import uuid
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert

from app.access.audit import Action, record
from app.analysis.report.charts import mean_heatmap
from app.errors import ConflictError
from app.incidents.evaluate import (
    Inside,
    Order,
    acknowledging,
    called,
    carry_out,
    locked,
    reopening,
    resolving,
    silencing,
    unacknowledging,
)
from app.incidents.held_machines import cordon_commands, machine_of, node_of
from app.incidents.lifecycle import INCIDENT
from app.incidents.machines import ended_with, inside_of, settle
from app.incidents.models.tables import AlertAssignee, AlertComment, AlertEvent, IncidentState
from app.incidents.reads import IncidentView, get_incident
from app.incidents.store import incident_of
from app.incidents.views import IncidentLife, incident_life
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads
from app.platform.identity import Principal
from app.sessions.models.reports import read_document, read_heatmaps
from app.sessions.models.tables import StoredReport

# A report with every figure of a large job is left to its own page.
MAX_REPORT: Final = 16 * 1024 * 1024
# More workers than these are in the report; the slowest are here.
MAX_WORKERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """An incident with its proof."""

    life: IncidentLife
    host: str  # empty where none is at fault, or none is recorded
    # sequence of pairs of str: schedulers, and how each takes the host out
    commands: Sequence[tuple[str, str]]
    guessed: bool  # whether the host's name may be that of a container; then there are none
    # (dp, pp): of the latest session that shows it; None where its report is gone or has no
    # verdict
    heatmap: NDArray[np.float32] | None
    picture: bytes | None  # the same as a PNG
    report: bytes | None  # the report as JSON; None also where it is too large to send along


def evidence_of(tx: Reads, incident_id: uuid.UUID, *, with_report: bool = False) -> Evidence:
    """Return the proof of an incident.

    Parameters
    ----------
    with_report : bool
        Whether the report is to be read as well.

    Raises
    ------
    NotFoundError
    """
    life = incident_life(tx, incident_id)
    incident = life.view.row.incident
    facts, host = incident.facts, machine_of(incident)
    heatmap, picture, report = None, None, None
    title = f"{life.view.row.job}, session {facts.number}: slowdown of workers" if facts else ""
    stored = None if facts is None else tx.session.get(StoredReport, facts.session)
    if facts is not None and stored is not None and facts.slowdown is not None:
        if stored.heatmap_blob is not None:
            from app.incidents.picture import heatmap_png  # noqa: PLC0415 - rarely drawn

            heatmap = mean_heatmap(read_heatmaps(tx, stored.heatmap_blob))
            picture = heatmap_png(heatmap, title)
        if with_report:
            document = read_document(tx, stored)
            report = document if len(document) <= MAX_REPORT else None
    return Evidence(
        life=life,
        host=host,
        commands=cordon_commands(node_of(incident), f"Paceline incident {incident.id}"),
        guessed=facts is not None and facts.guesses(host),
        heatmap=heatmap,
        picture=picture,
        report=report,
    )


def evidence_zip(found: Evidence, words: str) -> bytes:
    """Return everything as one archive of a bounded size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("incident.txt", words)
        row = found.life.view.row
        archive.writestr(
            "incident.json",
            json.dumps(
                {
                    "job": row.job,
                    "host": found.host or None,
                    "incident": INCIDENT.dump_python(row.incident, mode="json"),
                    "assignee": row.assignee,
                    "inside": [asdict(one) for one in row.inside],
                    "events": [asdict(event) for event in found.life.view.events],
                    "comments": [asdict(comment) for comment in found.life.view.comments],
                    "commands": dict(found.commands),
                },
                indent=1,
                default=str,
            ),
        )
        if found.commands:
            lines = [f"# {scheduler}\n{command}\n" for scheduler, command in found.commands]
            archive.writestr("cordon.txt", "\n".join(lines))
        if found.picture is not None:
            # A PNG is compressed already.
            archive.writestr("heatmap.png", found.picture, zipfile.ZIP_STORED)
        if found.heatmap is not None:
            archive.writestr("workers.csv", _workers_csv(found.heatmap))
        if found.report is not None:
            archive.writestr("report.json", found.report)
    return buffer.getvalue()


def _workers_csv(heatmap: NDArray[np.float32]) -> str:
    """Return the slowdowns of the workers, the slowest first; empty cells sent nothing."""
    import numpy as np  # noqa: PLC0415 - what the archive alone needs

    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("dp", "pp", "slowdown"))
    pp = heatmap.shape[1]
    order = np.argsort(-np.nan_to_num(heatmap, nan=-1.0), axis=None, kind="stable")
    for cell in order[:MAX_WORKERS].tolist():
        value = float(heatmap[cell // pp, cell % pp])
        lines.writerow((cell // pp, cell % pp, f"{value:.6g}" if value == value else ""))  # noqa: PLR0124 - NaN
    return text.getvalue()


# ---- Use case: the same order for many incidents, in one transaction ---------------------------


# More than a person selects; a transaction holds the locks of their groups.
MOST: Final = 500
# Refusals of one incident, which do not hold up the others.
LEFT_ALONE: Final = frozenset(
    {"incident.wrong_state", "incident.ended_by_itself", "incident.open_again"}
)


@dataclass(frozen=True, slots=True)
class Left:
    """An incident that an order does not apply to, and stays as it is."""

    id: uuid.UUID
    state: IncidentState
    why: str


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """The outcome of an order for many incidents."""

    changed: Sequence[uuid.UUID]
    left: Sequence[Left]


def acknowledge_many(
    container: Container, ids: Collection[uuid.UUID], *, by: str | None, note: str | None
) -> OrderOutcome:
    """Acknowledge incidents; those that it does not apply to stay as they are.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, acknowledging(who), who, note)


def unacknowledge_many(
    container: Container, ids: Collection[uuid.UUID], *, by: str | None
) -> OrderOutcome:
    """Take acknowledgements back; incidents without one stay as they are.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, unacknowledging, who, None)


def reopen_many(
    container: Container, ids: Collection[uuid.UUID], *, by: str | None, note: str | None
) -> OrderOutcome:
    """Take back that incidents are over; those that ended by themselves stay so.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, reopening, who, note, inside=ended_with)


def silence_many(
    container: Container,
    ids: Collection[uuid.UUID],
    *,
    until: datetime,
    reason: str,
    by: str | None,
) -> OrderOutcome:
    """Silence incidents; those that it does not apply to stay as they are.

    Raises
    ------
    NotFoundError
        If one of them is not there.
    ConflictError
        If the silence would end in the past. Then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, silencing(who, until, reason), who, reason)


def resolve_many(
    container: Container, ids: Collection[uuid.UUID], *, by: str | None, note: str | None
) -> OrderOutcome:
    """Resolve incidents; those that are over stay as they are.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, resolving(who, note), who, note)


def _order(  # noqa: PLR0913 - an order, who is behind it, and for what
    container: Container,
    ids: Collection[uuid.UUID],
    order: Order,
    who: Principal,
    note: str | None,
    *,
    inside: Inside = inside_of,
) -> OrderOutcome:
    changed, left = [], []
    with container.uow() as tx:
        for group, row in locked(tx, {*ids, *inside(tx, ids)}):
            incident = incident_of(row)
            try:
                change = order(incident, tx.now)
                if change is not None:
                    carry_out(container, tx, group, change, who=who, note=note)
                    changed.append(change.incident)
            except ConflictError as error:
                if error.stable_code not in LEFT_ALONE:
                    raise
                if row.id not in ids:
                    continue
                left.append(Left(row.id, incident.state, str(error)))
                continue
            if change is None and row.id in ids:
                left.append(Left(row.id, incident.state, f"The incident is {incident.state}."))
        settle(tx, changed)
    return OrderOutcome([one.id for one in changed], left)


# ---- Use cases: say something about an incident, and say whose it is ---------------------------


def comment_on(
    container: Container, incident_id: uuid.UUID, *, words: str, by: str | None
) -> IncidentView:
    """Say something about an incident, in whatever state it is.

    Raises
    ------
    NotFoundError
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        [(group, row)] = locked(tx, [incident_id])
        tx.session.add(AlertComment(incident_id=incident_id, author=who.name, words=words))
        record(tx, who, Action.COMMENTED, called(tx, group, incident_of(row)), detail=words)
    with container.reading() as tx:
        return get_incident(tx, incident_id)


def assign_incidents(
    container: Container, ids: Collection[uuid.UUID], *, to: str | None, by: str | None
) -> OrderOutcome:
    """Say whose incidents are; what is theirs already stays so.

    Parameters
    ----------
    ids : collection of UUID
    to : str or None
        None: no assignee.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    changed, left = [], []
    with container.uow() as tx:
        for group, row in locked(tx, ids):
            before = tx.session.get(AlertAssignee, row.id)
            if (before.name if before else None) == to:
                left.append(
                    Left(row.id, row.state, f"It is {to}'s." if to else "It is not assigned.")
                )
                continue
            if to is None:
                tx.session.execute(delete(AlertAssignee).where(AlertAssignee.incident_id == row.id))
            else:
                values = {"name": to, "assigned_by": who.name, "at": tx.now}
                tx.session.execute(
                    insert(AlertAssignee)
                    .values(incident_id=row.id, **values)
                    .on_conflict_do_update(index_elements=["incident_id"], set_=values)
                )
            group.number += 1
            tx.session.add(
                AlertEvent(
                    incident_id=row.id,
                    number=group.number,
                    event="assigned",
                    from_state=row.state,
                    to_state=row.state,
                    actor=who.name,
                    note=to,
                )
            )
            subject = called(tx, group, incident_of(row))
            record(tx, who, Action.ASSIGNED, subject, detail=f"to {to}" if to else "to no one")
            changed.append(row.id)
    return OrderOutcome(changed, left)
