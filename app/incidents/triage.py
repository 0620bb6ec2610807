"""Triage of incidents: printable evidence, orders for several incidents, comments, assignees."""

from __future__ import annotations

import csv
import io
import json
import uuid
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert

from app.access.audit import Action, record
from app.analysis.report.charts import mean_heatmap
from app.errors import ConflictError
from app.incidents.evaluate import (
    MembersOf,
    Order,
    apply_order,
    audit_name,
    lock_incidents,
)
from app.incidents.held_machines import cordon_commands_of, machine_of
from app.incidents.lifecycle import INCIDENT
from app.incidents.machines import open_members, place_incidents
from app.incidents.models.tables import AlertAssignee, AlertComment, AlertEvent, IncidentState
from app.incidents.reads import IncidentView, get_incident
from app.incidents.store import incident_of
from app.incidents.views import IncidentLife, incident_life
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads
from app.platform.identity import Principal
from app.sessions.models.reports import read_document, read_heatmaps
from app.sessions.models.tables import StoredReport

# Size limit in bytes of a report in the archive; larger reports are left out.
MAX_REPORT: Final = 16 * 1024 * 1024
# Maximum of slowest workers that the archive lists; the report contains all workers.
MAX_WORKERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """An incident with the measurements that prove its cause."""

    life: IncidentLife
    host: str  # host at fault; empty if no host is at fault or none is recorded
    # pairs of a scheduler and its command that takes the host out of service
    commands: Sequence[tuple[str, str]]
    guessed: bool  # whether the host's name may be that of a container; then there are no commands
    # worker slowdowns (dp, pp) of its latest session; None without a report or a verdict
    heatmap: NDArray[np.float32] | None
    picture: bytes | None  # the heatmap as a PNG
    report: bytes | None  # the report as JSON; None also if it is too large for the archive


def evidence_of(tx: Reads, incident_id: uuid.UUID, *, with_report: bool = False) -> Evidence:
    """Return an incident with its heatmap and report, for people who repair the machine.

    Parameters
    ----------
    with_report : bool
        Whether to read the report as well.

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
        commands=cordon_commands_of(incident),
        guessed=facts is not None and facts.has_guessed_name(host),
        heatmap=heatmap,
        picture=picture,
        report=report,
    )


def evidence_zip(evidence: Evidence, words: str) -> bytes:
    """Return the evidence as a ZIP archive of limited size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("incident.txt", words)
        row = evidence.life.view.row
        archive.writestr(
            "incident.json",
            json.dumps(
                {
                    "job": row.job,
                    "host": evidence.host or None,
                    "incident": INCIDENT.dump_python(row.incident, mode="json"),
                    "assignee": row.assignee,
                    "inside": [asdict(member) for member in row.inside],
                    "events": [asdict(event) for event in evidence.life.view.events],
                    "comments": [asdict(comment) for comment in evidence.life.view.comments],
                    "commands": dict(evidence.commands),
                },
                indent=1,
                default=str,
            ),
        )
        if evidence.commands:
            lines = [f"# {scheduler}\n{command}\n" for scheduler, command in evidence.commands]
            archive.writestr("cordon.txt", "\n".join(lines))
        if evidence.picture is not None:
            # Stored without compression, because PNG data are compressed already.
            archive.writestr("heatmap.png", evidence.picture, zipfile.ZIP_STORED)
        if evidence.heatmap is not None:
            archive.writestr("workers.csv", _workers_csv(evidence.heatmap))
        if evidence.report is not None:
            archive.writestr("report.json", evidence.report)
    return buffer.getvalue()


def _workers_csv(heatmap: NDArray[np.float32]) -> str:
    """Return the worker slowdowns as CSV, slowest worker first; empty if a worker has no data."""
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


# Maximum of incidents in one order, above what a user selects; the transaction locks all their
# groups.
MAX_INCIDENTS: Final = 500
# Codes of refusals that concern a single incident, so that the order continues with the others.
SKIPPED_CODES: Final = frozenset(
    {"incident.wrong_state", "incident.ended_by_itself", "incident.open_again"}
)


@dataclass(frozen=True, slots=True)
class Left:
    """An incident that an order does not apply to and does not change."""

    id: uuid.UUID
    state: IncidentState
    why: str


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """The outcome of an order for several incidents."""

    changed: Sequence[uuid.UUID]
    left: Sequence[Left]


def order_many(  # noqa: PLR0913 - an order, who gives it, and for which incidents
    container: Container,
    ids: Collection[uuid.UUID],
    order: Order,
    who: Principal,
    note: str | None = None,
    *,
    inside: MembersOf = open_members,
) -> OrderOutcome:
    """Apply an order to incidents and their members; incidents that refuse it are not changed.

    Raises
    ------
    NotFoundError
        If an incident does not exist; then no incident is changed.
    ConflictError
        If the order itself is invalid, such as a silence that ends in the past; then no incident is
        changed.
    """
    changed, left = [], []
    with container.uow() as tx:
        for group, row in lock_incidents(tx, {*ids, *inside(tx, ids)}):
            incident = incident_of(row)
            try:
                change = order(incident, tx.now)
                if change is not None:
                    apply_order(container, tx, group, change, who=who, note=note)
                    changed.append(change.incident)
            except ConflictError as error:
                if error.stable_code not in SKIPPED_CODES:
                    raise
                if row.id not in ids:
                    continue
                left.append(Left(row.id, incident.state, str(error)))
                continue
            if change is None and row.id in ids:
                left.append(Left(row.id, incident.state, f"The incident is {incident.state}."))
        place_incidents(tx, changed)
    return OrderOutcome([incident.id for incident in changed], left)


def comment_on(
    container: Container, incident_id: uuid.UUID, *, words: str, by: str | None
) -> IncidentView:
    """Add a comment to an incident in any state.

    Raises
    ------
    NotFoundError
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        [(group, row)] = lock_incidents(tx, [incident_id])
        tx.session.add(AlertComment(incident_id=incident_id, author=who.name, words=words))
        record(tx, who, Action.COMMENTED, audit_name(tx, group, incident_of(row)), detail=words)
    with container.reading() as tx:
        return get_incident(tx, incident_id)


def assign_incidents(
    container: Container, ids: Collection[uuid.UUID], *, to: str | None, by: str | None
) -> OrderOutcome:
    """Set the assignee of incidents; incidents that have this assignee are not changed.

    Parameters
    ----------
    ids : collection of UUID
    to : str or None
        Name of the new assignee; None removes the assignee.

    Raises
    ------
    NotFoundError
        If an incident does not exist; then no incident is changed.
    """
    who = container.principal.called(by)
    changed, left = [], []
    with container.uow() as tx:
        for group, row in lock_incidents(tx, ids):
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
            subject = audit_name(tx, group, incident_of(row))
            record(tx, who, Action.ASSIGNED, subject, detail=f"to {to}" if to else "to no one")
            changed.append(row.id)
    return OrderOutcome(changed, left)
