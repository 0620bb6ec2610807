"""What pages show of a channel's secrets, so that they need not decrypt them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # The next sweep, which has the keys, fills them for channels that are there.
    op.add_column(
        "alert_channel",
        sa.Column(
            "secret_hints",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
    )
    op.add_column(
        "alert_channel",
        sa.Column("readable", sa.Boolean(), server_default=sa.text("true"), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("alert_channel", "readable")
    op.drop_column("alert_channel", "secret_hints")
