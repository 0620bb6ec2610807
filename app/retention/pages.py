"""The page of a project's retention rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.guard import Here
from app.access.projects import project_name
from app.pulse.receive import pulse_is_off
from app.retention.kinds import KINDS
from app.retention.models import AUDIT_DAYS, Keep, KeepAudit, KeepRows, RetentionRules
from app.retention.rules import Use, rules_of, uses_of
from app.web.format import byte_size, listing
from app.web.pages import Pages
from app.web.tables import Table, csv_file

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class KindLine:
    """A kind of data with a retention rule; limits are texts of the form's fields."""

    name: str
    title: str
    what: str
    count: int
    size: str
    oldest: datetime | None
    days: str
    gib: str
    least_days: float
    parts_of_days: bool


def kind_lines(rules: RetentionRules, uses: Mapping[str, Use]) -> tuple[KindLine, ...]:
    """Return the line of each kind of data."""
    lines = []
    for kind in KINDS:
        keep, use = kind.keep(rules), uses[kind.name]
        lines.append(
            KindLine(
                name=kind.name,
                title=kind.title,
                what=kind.what,
                count=use.count,
                size=byte_size(use.bytes),
                oldest=use.oldest,
                days="" if keep.days is None else f"{keep.days:g}",
                gib="" if keep.bytes is None else f"{keep.bytes / GIB:.6g}",
                least_days=_least_days(keep),
                parts_of_days=isinstance(keep, KeepRows),
            )
        )
    return tuple(lines)


def _least_days(keep: Keep | KeepAudit | KeepRows) -> float:
    if isinstance(keep, KeepAudit):
        return AUDIT_DAYS
    # An hour in days, rounded up: the smallest value of the form must be valid for the rules.
    return 0.0417 if isinstance(keep, KeepRows) else 1


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
    def retention_route(container: Here) -> Response:
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
            lines=kind_lines(rules, uses),
            pulse_off=pulse_off,
        )

    @routes.get("/retention.csv")
    def retention_file_route(container: Here) -> Response:
        with container.reading() as tx:
            rules, uses = rules_of(tx), uses_of(tx)
        kept = ((kind.name, uses[kind.name], kind.keep(rules)) for kind in KINDS)
        return csv_file(
            "paceline-retention.csv",
            Table(
                ("kind", "bytes", "count", "oldest", "limit_days", "limit_bytes"),
                (
                    (name, use.bytes, use.count, use.oldest, keep.days, keep.bytes)
                    for name, use, keep in kept
                ),
            ),
        )
