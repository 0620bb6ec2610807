"""A channel and a delivery, as the dashboard reads them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import escape

from app.incidents.channel_reads import ChannelView
from app.incidents.delivery_reads import DeliveryRow
from app.incidents.models.rules import Selector
from app.incidents.models.tables import DeliveryState
from app.web.moments import plain
from app.web.tables import Line

NOW = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)


def channel(**changes: Any) -> ChannelView:  # noqa: ANN401 - fields of ChannelView
    """Return a channel without failures."""
    found = ChannelView(
        id=uuid.UUID(int=99),
        name="ops",
        kind="webhook",
        audience="on_call",
        rate_limit=10,
        selector=Selector(),
        config={},
        secrets={"url": "hooks.example"},
        readable=True,
        enabled=True,
        disabled_reason=None,
        failures=0,
        last_error=None,
        last_failure_at=None,
        last_success_at=datetime(2026, 11, 20, 9, 22, tzinfo=UTC),
        waiting=0,
        created_at=datetime(2026, 11, 1, tzinfo=UTC),
    )
    return replace(found, **changes)


def delivery(state: str, **changes: Any) -> DeliveryRow:  # noqa: ANN401 - fields of DeliveryRow
    """Return a delivery whose only attempt was answered."""
    found = DeliveryRow(
        id=uuid.UUID(int=7),
        channel_id=uuid.UUID(int=99),
        channel="ops",
        job="llm",
        number=1,
        state=DeliveryState(state),
        attempt=1,
        created_at=NOW - timedelta(minutes=9),
        next_attempt_at=None,
        finished_at=NOW - timedelta(minutes=8),
        message=None,
        error_code=None,
        error=None,
        answer_status=200,
        answer="ok",
    )
    return replace(found, **changes)


def texts(line: Line) -> list[str]:
    """Return the text of each cell of a row."""
    return [plain(escape(cell.content)) for cell in line.cells]
