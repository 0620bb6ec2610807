"""The built-in rule "No data" leaves out jobs with the label of the demo, which end by themselves.

Only where nobody changed the rule.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# The built-in rule as revision 0002 inserted it, and as the program writes it for a new project.
INSERTED: Final = {
    "condition": {"kind": "no_data", "minutes": 10, "intervals": 3},
    "selector": {"importance": ["normal", "high"]},
    "consecutive": 1,
    "clear_sessions": 1,
}
SAVED: Final = {
    "condition": {"kind": "no_data", "minutes": 10.0, "intervals": 3.0},
    "selector": {"jobs": [], "labels": {}, "importance": ["normal", "high"]},
    "enabled": True,
    "consecutive": 1,
    "clear_sessions": 1,
    "severity": "warning",
    "audience": "on_call",
    "channels": [],
    "escalation": None,
}


def upgrade() -> None:
    op.execute(
        sa.text(
            """
            UPDATE alert_rule
            SET document = jsonb_set(document, '{selector,except_labels}', '{"demo": "true"}')
            WHERE name = 'No data'
                AND document IN (CAST(:inserted AS jsonb), CAST(:saved AS jsonb))
            """
        ).bindparams(inserted=json.dumps(INSERTED), saved=json.dumps(SAVED))
    )


def downgrade() -> None:
    op.execute("UPDATE alert_rule SET document = document #- '{selector,except_labels}'")
