"""The pages of incidents and of channels."""

from __future__ import annotations

import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from app.alerts.machines.inside import machine_of
from app.analysis.replay.metrics import STRAGGLING
from app.auth.here import Here
from app.dashboard.alerts.channels import channels_page
from app.dashboard.alerts.evidence import evidence_page, evidence_text
from app.dashboard.alerts.exports import (
    OF_INCIDENT,
    channels_csv,
    incidents_csv,
    undelivered_csv,
)
from app.dashboard.alerts.filters import IncidentsQuery
from app.dashboard.alerts.incident_fixes import fixes_of, realized_of, remedies_of
from app.dashboard.alerts.incidents import first_of, incidents_page
from app.dashboard.fixes.applied import applied_csv
from app.dashboard.fixes.whole_job import whole_job_line
from app.dashboard.ui.address import asked_for
from app.dashboard.ui.csv_text import csv_file, one_of
from app.errors import NotFoundError
from app.services.actions.listed import machine_actions
from app.services.alerts.channels.reads import channels_and_tallies, no_channel
from app.services.alerts.channels.views import undelivered
from app.services.alerts.deliveries.deliver import apprise_is_usable
from app.services.alerts.everywhere import reads_several
from app.services.alerts.onset import onset_of_incident
from app.services.alerts.triage.evidence import evidence_of, evidence_zip
from app.services.alerts.views import incident_life, incidents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.dashboard.pages import Pages
    from app.db.unit_of_work import Reads
    from app.services.actions.listed import MachineActions
    from app.services.alerts.channels.reads import ChannelView
    from app.services.alerts.views import IncidentLife
    from app.services.container import Container

IncidentsQueryParam = Annotated[IncidentsQuery, Depends(asked_for(IncidentsQuery))]


def add_alert_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of alerts to the dashboard."""
    _add_incidents(routes, pages)
    _add_evidence(routes, pages)
    _add_incident_files(routes)
    _add_channels(routes, pages)


def _add_incidents(routes: APIRouter, pages: Pages) -> None:
    def show(
        container: Container, query: IncidentsQuery, incident: str | None, *, plain: bool = False
    ) -> Response:
        with pages.reading(container) as (tx, nav):
            # Whoever reads several projects and asks for nothing gets one list of all.
            if plain and not container.pages_at and reads_several(tx, container.principal):
                return RedirectResponse("/incidents/everywhere", HTTPStatus.SEE_OTHER)
            found = incidents(tx, query.at(tx.now), sort=query.sort, number=query.number)
            try:
                chosen = first_of(found) if incident is None else uuid.UUID(incident)
                life = None if chosen is None else incident_life(tx, chosen)
                # With the list they would cost it another statement.
                done = None if life is None or incident is None else remedies_of(tx, life.view.row)
            except (ValueError, NotFoundError):
                return pages.not_found(f"incident {incident}", nav)
            onset = None if life is None else onset_of_incident(tx, life.view.row, STRAGGLING)
            doing = None if life is None or incident is None else _doing(container, tx, life)
            channels, tallies = channels_and_tallies(tx)
        page = incidents_page(
            found,
            life,
            channels,
            tallies,
            query,
            onset=onset,
            doing=doing,
            chosen=incident is not None,
        )
        return pages.render(
            "alerts/incidents.html",
            nav,
            page=page,
            now=page.now,
            applied=None if done is None else fixes_of(done, f"/incidents/{chosen}", page.now),
            whole_job=None if done is None else whole_job_line(done.whole_job),
        )

    @routes.get("/incidents")
    def incidents_route(container: Here, request: Request, query: IncidentsQueryParam) -> Response:
        return show(container, query, None, plain=not request.query_params)

    @routes.get("/incidents/{incident}")
    def incident_route(container: Here, incident: str, query: IncidentsQueryParam) -> Response:
        return show(container, query, incident)


def _add_evidence(routes: APIRouter, pages: Pages) -> None:
    def proof(container: Container, incident: str, *, packed: bool) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                found = evidence_of(tx, uuid.UUID(incident), with_report=packed)
            except (ValueError, NotFoundError):
                return pages.not_found(f"incident {incident}", nav)
        page = evidence_page(found)
        if not packed:
            return pages.render("alerts/evidence.html", nav, page=page, now=page.now)
        name = f"incident-{page.id}.zip"
        return Response(
            evidence_zip(found, evidence_text(page)),
            media_type="application/zip",
            headers={
                "Content-Disposition": f'attachment; filename="{name}"',
                "Cache-Control": "no-store",
            },
        )

    @routes.get("/incidents/{incident}/evidence")
    def evidence_route(container: Here, incident: str) -> Response:
        return proof(container, incident, packed=False)

    @routes.get("/incidents/{incident}/evidence.zip")
    def evidence_zip_route(container: Here, incident: str) -> Response:
        return proof(container, incident, packed=True)


def _add_incident_files(routes: APIRouter) -> None:
    @routes.get("/incidents.csv")
    def incidents_file_route(container: Here, query: IncidentsQueryParam) -> Response:
        return csv_file("paceline-incidents.csv", incidents_csv(container, query))

    @routes.get("/incidents/{incident}/{name}.csv")
    def incident_file_route(container: Here, incident: uuid.UUID, name: str) -> Response:
        with container.reading() as tx:
            life = incident_life(tx, incident)
            if name == "fixes":
                table = applied_csv(realized_of(tx, life.view.row))
            else:
                table = one_of(OF_INCIDENT, name)(life)
        return csv_file(f"paceline-incident-{name}.csv", table)


def _add_channels(routes: APIRouter, pages: Pages) -> None:
    def show(
        container: Container, selected: str | None = None, *, adding: bool = False
    ) -> Response:
        with pages.reading(container) as (tx, nav):
            channels, tallies = channels_and_tallies(tx)
            try:
                chosen = None if selected is None else _find(channels, uuid.UUID(selected))
            except (ValueError, NotFoundError):
                return pages.not_found(f"channel {selected}", nav)
            lost, now = undelivered(tx, chosen.id if chosen else None), tx.now
        page = channels_page(
            channels,
            tallies,
            lost,
            now,
            selected=chosen,
            adding=adding,
            apprise=apprise_is_usable(container.settings),
        )
        return pages.render("alerts/channels.html", nav, page=page, now=page.now)

    @routes.get("/channels")
    def channels_route(container: Here) -> Response:
        return show(container)

    @routes.get("/channels.csv")
    def channels_file_route(container: Here) -> Response:
        with container.reading() as tx:
            table = channels_csv(*channels_and_tallies(tx))
        return csv_file("paceline-channels.csv", table)

    @routes.get("/channels-undelivered.csv")
    def undelivered_file_route(container: Here, channel: uuid.UUID | None = None) -> Response:
        with container.reading() as tx:
            lost, _ = undelivered(tx, channel)
        return csv_file("paceline-undelivered.csv", undelivered_csv(lost))

    @routes.get("/channels/new")
    def new_channel_route(container: Here) -> Response:
        return show(container, adding=True)

    @routes.get("/channels/{channel}")
    def channel_route(container: Here, channel: str) -> Response:
        return show(container, channel)


def _doing(container: Container, tx: Reads, life: IncidentLife) -> MachineActions | None:
    """Return what is done to the machine of an incident, or said about its hang; None of others."""
    incident = life.view.row.incident
    host, hang = machine_of(incident), None if incident.hang is None else incident.id
    return machine_actions(tx, container.settings, host, hang) if host or hang else None


def _find(channels: Sequence[ChannelView], channel_id: uuid.UUID) -> ChannelView:
    for channel in channels:
        if channel.id == channel_id:
            return channel
    raise no_channel(channel_id)
