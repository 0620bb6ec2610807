"""No session was ever in the state ``sealed``: a session that is sealed is queued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.drop_constraint(op.f("ck_session_state"), "session")
    op.create_check_constraint(
        op.f("ck_session_state"),
        "session",
        "state IN ('open', 'queued', 'analyzing', 'analyzed', 'no_verdict', 'discarded', 'failed')",
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_session_state"), "session")
    op.create_check_constraint(
        op.f("ck_session_state"),
        "session",
        "state IN ('open', 'sealed', 'queued', 'analyzing', 'analyzed', 'no_verdict',"
        " 'discarded', 'failed')",
    )
