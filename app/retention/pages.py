"""The page of a project's retention rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.guard import RequestContainer
from app.access.projects import project_name
from app.pulse.receive import pulse_is_off
from app.retention.kinds import KINDS
from app.retention.models import AUDIT_DAYS, KeepAudit, KeepRows, RetentionRules
from app.retention.rules import Use, rules_of, uses_of
from app.web.format import listing
from app.web.lists import Column
from app.web.pages import Pages
from app.web.tables import Table, csv_file

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class KindUse:
    """The stored data of a kind, and the limits of the kind's retention rule."""

    kind: str
    bytes: int
    count: int
    oldest: datetime | None
    limit_days: float | None
    limit_bytes: int | None
    title: Annotated[str, Column(csv=None)]
    what: Annotated[str, Column(csv=None)]
    least_days: Annotated[float, Column(csv=None)]  # the smallest age that the form accepts
    parts_of_days: Annotated[bool, Column(csv=None)]

    @property
    def days(self) -> str:
        """Return the limit of the age as the text of a form field, days."""
        return "" if self.limit_days is None else f"{self.limit_days:g}"

    @property
    def gib(self) -> str:
        """Return the limit of the size as the text of a form field, GiB."""
        return "" if self.limit_bytes is None else f"{self.limit_bytes / GIB:.6g}"


def kind_uses(rules: RetentionRules, uses: Mapping[str, Use]) -> list[KindUse]:
    """Return the stored data and the limits of each kind."""
    rows = []
    for kind in KINDS:
        keep, use = kind.keep(rules), uses[kind.name]
        least_days: float = 1
        if isinstance(keep, KeepAudit):
            least_days = AUDIT_DAYS
        elif isinstance(keep, KeepRows):
            # An hour in days, rounded up: the smallest value of the form must be valid.
            least_days = 0.0417
        rows.append(
            KindUse(
                kind=kind.name,
                bytes=use.bytes,
                count=use.count,
                oldest=use.oldest,
                limit_days=keep.days,
                limit_bytes=keep.bytes,
                title=kind.title,
                what=kind.what,
                least_days=least_days,
                parts_of_days=isinstance(keep, KeepRows),
            )
        )
    return rows


def retention_heading(rules: RetentionRules) -> str:
    """Return the page's heading: which data of old sessions are deleted."""
    of_sessions = [kind for kind in KINDS if kind.name in ("traces", "heatmaps", "reports")]
    goes = [
        kind.title.lower()
        for kind in of_sessions
        if (keep := kind.keep(rules)).days is not None or keep.bytes is not None
    ]
    if not goes:
        return "Sessions are kept without limit"
    if len(goes) == len(of_sessions):
        return "Old sessions keep only what lists show of them"
    return f"Old sessions lose {listing(goes)}"


def add_retention_page(routes: APIRouter, pages: Pages) -> None:
    """Add the page of retention rules to the dashboard."""

    @routes.get("/retention")
    def retention_route(container: RequestContainer) -> Response:
        with pages.reading(container) as (tx, nav):
            rules, uses = rules_of(tx), uses_of(tx)
            project, pulse_off = project_name(tx), pulse_is_off(tx)
            now = tx.now
        return pages.render(
            "retention/page.html",
            nav,
            now=now,
            project=project,
            heading=retention_heading(rules),
            rows=kind_uses(rules, uses),
            pulse_off=pulse_off,
        )

    @routes.get("/retention.csv")
    def retention_file_route(container: RequestContainer) -> Response:
        with container.reading() as tx:
            rules, uses = rules_of(tx), uses_of(tx)
        return csv_file("paceline-retention.csv", Table.of(KindUse, kind_uses(rules, uses)))
