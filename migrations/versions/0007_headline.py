"""The headline of a session: its slowdown against the job without its causes.

Sessions that were analyzed before get one where it is S: no cause is named, or most of the loss is
unknown. Of the others only another analysis says it; until then the columns stay null, and readers
show S instead (`SessionRow.shown`, `Facts.shown`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

SLOW_JOB: Final = "5a0c1ea1-0000-4000-8000-000000000001"
# The built-in rule as revision 0002 inserted it, and as the program writes it when it is saved.
INSERTED: Final = {
    "condition": {"kind": "slowdown", "at_least": 1.1, "clears_below": 1.05},
    "selector": {"importance": ["normal", "high"]},
    "escalation": {"at_least": 1.5},
}
SAVED: Final = {
    "condition": {"kind": "slowdown", "at_least": 1.1, "clears_below": 1.05},
    "selector": {"jobs": [], "labels": {}, "importance": ["normal", "high"]},
    "enabled": True,
    "consecutive": 2,
    "clear_sessions": 2,
    "severity": "warning",
    "audience": "on_call",
    "channels": [],
    "escalation": {"at_least": 1.5, "after_minutes": None, "channels": []},
}


def upgrade() -> None:
    op.add_column("session", sa.Column("headline_slowdown", sa.Float(), nullable=True))
    op.add_column("session", sa.Column("headline_low", sa.Float(), nullable=True))
    op.add_column("session", sa.Column("headline_high", sa.Float(), nullable=True))
    op.add_column("session", sa.Column("headline_gpu_hours_lost", sa.Float(), nullable=True))
    op.add_column("session", sa.Column("headline_kind", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_session_headline_kind"), "session", "headline_kind IN ('causes', 'published')"
    )
    op.execute(
        """
        UPDATE session SET headline_slowdown = slowdown, headline_low = slowdown_low,
            headline_high = slowdown_high, headline_gpu_hours_lost = gpu_hours_lost,
            headline_kind = 'published'
        WHERE slowdown IS NOT NULL AND (
            headline->'causes' = '[]' OR headline->'causes' @> '[{"cause": "unknown"}]'
        )
        """
    )
    # Whatever a person changed of the rule, its condition included, stays as it is.
    op.execute(
        sa.text(
            """
            UPDATE alert_rule
            SET document = jsonb_set(document, '{condition,kind}', '"headline"')
            WHERE id = CAST(:id AS uuid) AND name = 'Slow job'
                AND document IN (CAST(:inserted AS jsonb), CAST(:saved AS jsonb))
            """
        ).bindparams(id=SLOW_JOB, inserted=json.dumps(INSERTED), saved=json.dumps(SAVED))
    )


def downgrade() -> None:
    # An earlier program cannot read the new kind of rule.
    op.execute(
        """
        UPDATE alert_rule SET document = jsonb_set(document, '{condition,kind}', '"slowdown"')
        WHERE document->'condition'->>'kind' = 'headline'
        """
    )
    op.drop_constraint(op.f("ck_session_headline_kind"), "session")
    for column in (
        "headline_kind",
        "headline_gpu_hours_lost",
        "headline_high",
        "headline_low",
        "headline_slowdown",
    ):
        op.drop_column("session", column)
