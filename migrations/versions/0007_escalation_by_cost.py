"""The rule for slow jobs escalates by what a job loses, unless its escalation was edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_CHANGE: Final = """
UPDATE alert_rule SET document = jsonb_set(document, '{{escalation}}', '{after}')
WHERE id = '5a0c1ea1-0000-4000-8000-000000000001' AND document -> 'escalation' = '{before}'
"""
_BEFORE: Final = '{"at_least": 1.5}'
_AFTER: Final = '{"at_least": 1.5, "gpu_hours_per_hour": 100.0}'


def upgrade() -> None:
    op.execute(_CHANGE.format(before=_BEFORE, after=_AFTER))


def downgrade() -> None:
    op.execute(_CHANGE.format(before=_AFTER, after=_BEFORE))
