"""The pages of rules: the list, and a form for a new one or for one that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import Response

from app.analysis.diagnosis.causes import registry
from app.dashboard.alerts.rules import KINDS, rules_page
from app.services.alerts.channels import list_channels
from app.services.alerts.rules import list_rules
from app.services.alerts.views import open_by_job

if TYPE_CHECKING:
    from app.alerts.rules import Rule
    from app.dashboard.routes import Pages
    from app.services.container import Container


def add_rule_pages(routes: APIRouter, container: Container, pages: Pages) -> None:
    """Add the pages of rules to the dashboard."""

    def show(rules: list[Rule], chosen: Rule | None) -> Response:
        present = [row for rows in open_by_job(container).values() for row in rows]
        page = rules_page(rules, list_channels(container), present, chosen)
        return pages.render(
            "alerts/rules.html", page=page, kinds=KINDS, causes=registry.KINDS.values()
        )

    @routes.get("/rules")
    def rules_route() -> Response:
        return show(list_rules(container), None)

    @routes.get("/rules/{rule}")
    def rule_route(rule: str) -> Response:
        rules = list_rules(container)
        found = [known for known in rules if str(known.id) == rule]
        return show(rules, found[0]) if found else pages.not_found(f"rule {rule}")
