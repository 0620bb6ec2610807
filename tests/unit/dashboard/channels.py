"""A channel as the views of the dashboard get it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from app.alerts.rules import Selector
from app.services.alert_channels import ChannelView


def channel(**changes: Any) -> ChannelView:  # noqa: ANN401 - fields of ChannelView
    """Return one that works."""
    found = ChannelView(
        id=uuid.UUID(int=99),
        name="ops",
        kind="webhook",
        audience="on_call",
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
