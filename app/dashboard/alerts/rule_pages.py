"""The pages of rules: the list, and a form for a new one or for one that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import Response

from app.auth.here import Here
from app.dashboard.alerts.exports import rules_csv
from app.dashboard.alerts.rules import rules_page
from app.dashboard.ui.csv_text import csv_file
from app.services.alerts.channels.reads import list_channels
from app.services.alerts.store import load_rules
from app.services.alerts.views import open_by_job

if TYPE_CHECKING:
    from app.dashboard.pages import Pages
    from app.services.container import Container


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
        return pages.render("alerts/rules.html", nav, page=page)

    @routes.get("/rules")
    def rules_route(container: Here) -> Response:
        return show(container, None)

    @routes.get("/rules.csv")
    def rules_file_route(container: Here) -> Response:
        with container.reading() as tx:
            table = rules_csv(load_rules(tx), list_channels(tx))
        return csv_file("paceline-rules.csv", table)

    @routes.get("/rules/{rule}")
    def rule_route(container: Here, rule: str) -> Response:
        return show(container, rule)
