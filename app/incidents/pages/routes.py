"""Routes of the pages and CSV files of incidents, channels and rules."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from app.access.guard import RequestContainer
from app.actions.listed import MachineActions, machine_actions
from app.analysis.replay.metrics import STRAGGLING
from app.errors import NotFoundError
from app.fixes.pages import applied_csv, whole_job_line
from app.incidents.channel_reads import ChannelView, channels_and_tallies, list_channels, no_channel
from app.incidents.channel_settings import undelivered
from app.incidents.deliver import apprise_is_usable
from app.incidents.delivery_reads import DeliveryRow
from app.incidents.everywhere import onset_of_incident, reads_several
from app.incidents.held_machines import machine_of
from app.incidents.pages.channels import channels_csv, channels_page
from app.incidents.pages.incident import (
    evidence_page,
    evidence_text,
    first_of,
    fixes_of,
    incidents_page,
    realized_of,
    remedies_of,
)
from app.incidents.pages.list import (
    OF_INCIDENT,
    IncidentsQuery,
    incidents_csv,
)
from app.incidents.pages.rules import rules_csv, rules_page
from app.incidents.store import load_rules
from app.incidents.triage import evidence_of, evidence_zip
from app.incidents.views import IncidentLife, incident_life, incidents, open_by_job
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads
from app.web.links import asked_for
from app.web.pages import Pages
from app.web.tables import Table, csv_file, one_of

IncidentsQueryParam = Annotated[IncidentsQuery, Depends(asked_for(IncidentsQuery))]


def add_alert_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of incidents and channels to the dashboard."""
    _add_incidents(routes, pages)
    _add_evidence(routes, pages)
    _add_incident_files(routes)
    _add_channels(routes, pages)


def _add_incidents(routes: APIRouter, pages: Pages) -> None:
    def show(
        container: Container, query: IncidentsQuery, incident: str | None, *, plain: bool = False
    ) -> Response:
        with pages.reading(container) as (tx, nav):
            # Without query parameters, readers of several projects are redirected to the list of
            # all projects.
            if plain and not container.pages_at and reads_several(tx, container.principal):
                return RedirectResponse("/incidents/everywhere", HTTPStatus.SEE_OTHER)
            listed = incidents(tx, query.at(tx.now), sort=query.sort, number=query.number)
            try:
                chosen = first_of(listed) if incident is None else uuid.UUID(incident)
                life = None if chosen is None else incident_life(tx, chosen)
                # Not part of the list's read, because it would add a statement to each list.
                done = None if life is None or incident is None else remedies_of(tx, life.view.row)
            except (ValueError, NotFoundError):
                return pages.not_found(f"incident {incident}", nav)
            onset = None if life is None else onset_of_incident(tx, life.view.row, STRAGGLING)
            doing = None if life is None or incident is None else _doing(container, tx, life)
            channels, tallies = channels_and_tallies(tx)
        page = incidents_page(
            listed,
            life,
            channels,
            tallies,
            query,
            onset=onset,
            doing=doing,
            chosen=incident is not None,
        )
        return pages.render(
            "incidents/incidents.html",
            nav,
            page=page,
            now=page.now,
            applied=None if done is None else fixes_of(done, f"/incidents/{chosen}", page.now),
            whole_job=None if done is None else whole_job_line(done.whole_job),
        )

    @routes.get("/incidents")
    def incidents_route(
        container: RequestContainer, request: Request, query: IncidentsQueryParam
    ) -> Response:
        return show(container, query, None, plain=not request.query_params)

    @routes.get("/incidents/{incident}")
    def incident_route(
        container: RequestContainer, incident: str, query: IncidentsQueryParam
    ) -> Response:
        return show(container, query, incident)


def _add_evidence(routes: APIRouter, pages: Pages) -> None:
    def proof(container: Container, incident: str, *, packed: bool) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                evidence = evidence_of(tx, uuid.UUID(incident), with_report=packed)
            except (ValueError, NotFoundError):
                return pages.not_found(f"incident {incident}", nav)
        page = evidence_page(evidence)
        if not packed:
            return pages.render("incidents/evidence.html", nav, page=page, now=page.now)
        name = f"incident-{page.id}.zip"
        return Response(
            evidence_zip(evidence, evidence_text(page)),
            media_type="application/zip",
            headers={
                "Content-Disposition": f'attachment; filename="{name}"',
                "Cache-Control": "no-store",
            },
        )

    @routes.get("/incidents/{incident}/evidence")
    def evidence_route(container: RequestContainer, incident: str) -> Response:
        return proof(container, incident, packed=False)

    @routes.get("/incidents/{incident}/evidence.zip")
    def evidence_zip_route(container: RequestContainer, incident: str) -> Response:
        return proof(container, incident, packed=True)


def _add_incident_files(routes: APIRouter) -> None:
    @routes.get("/incidents.csv")
    def incidents_file_route(container: RequestContainer, query: IncidentsQueryParam) -> Response:
        return csv_file("paceline-incidents.csv", incidents_csv(container, query))

    @routes.get("/incidents/{incident}/{name}.csv")
    def incident_file_route(
        container: RequestContainer, incident: uuid.UUID, name: str
    ) -> Response:
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
        return pages.render("incidents/channels.html", nav, page=page, now=page.now)

    @routes.get("/channels")
    def channels_route(container: RequestContainer) -> Response:
        return show(container)

    @routes.get("/channels.csv")
    def channels_file_route(container: RequestContainer) -> Response:
        with container.reading() as tx:
            table = channels_csv(*channels_and_tallies(tx))
        return csv_file("paceline-channels.csv", table)

    @routes.get("/channels-undelivered.csv")
    def undelivered_file_route(
        container: RequestContainer, channel: uuid.UUID | None = None
    ) -> Response:
        with container.reading() as tx:
            lost = [item.delivery for item in undelivered(tx, channel)[0]]
        return csv_file("paceline-undelivered.csv", Table.of(DeliveryRow, lost))

    @routes.get("/channels/new")
    def new_channel_route(container: RequestContainer) -> Response:
        return show(container, adding=True)

    @routes.get("/channels/{channel}")
    def channel_route(container: RequestContainer, channel: str) -> Response:
        return show(container, channel)


def _doing(container: Container, tx: Reads, life: IncidentLife) -> MachineActions | None:
    """Return the actions on an incident's machine or hang; None if the incident has neither."""
    incident = life.view.row.incident
    host, hang = machine_of(incident), None if incident.hang is None else incident.id
    return machine_actions(tx, container.settings, host, hang) if host or hang else None


def _find(channels: Sequence[ChannelView], channel_id: uuid.UUID) -> ChannelView:
    for channel in channels:
        if channel.id == channel_id:
            return channel
    raise no_channel(channel_id)


def add_rule_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of rules to the dashboard."""

    def show(container: Container, selected: str | None) -> Response:
        with pages.reading(container) as (tx, nav):
            rules = load_rules(tx)
            chosen = next((rule for rule in rules if str(rule.id) == selected), None)
            if selected is not None and chosen is None:
                return pages.not_found(f"rule {selected}", nav)
            channels, present, now = list_channels(tx), open_by_job(tx), tx.now
        rows = [row for job in present.values() for row in job]
        page = rules_page(rules, channels, rows, chosen, now)
        return pages.render("incidents/rules.html", nav, page=page)

    @routes.get("/rules")
    def rules_route(container: RequestContainer) -> Response:
        return show(container, None)

    @routes.get("/rules.csv")
    def rules_file_route(container: RequestContainer) -> Response:
        with container.reading() as tx:
            table = rules_csv(load_rules(tx), list_channels(tx))
        return csv_file("paceline-rules.csv", table)

    @routes.get("/rules/{rule}")
    def rule_route(container: RequestContainer, rule: str) -> Response:
        return show(container, rule)
