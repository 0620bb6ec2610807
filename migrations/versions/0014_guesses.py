"""Guesses of passwords are counted, and browsers that people signed in with stand apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "guess_bucket",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("owed_until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_guess_bucket"),
    )
    op.create_index("ix_guess_bucket_owed_until", "guess_bucket", ["owed_until"])
    op.create_table(
        "known_browser",
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("person_id", sa.Uuid(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_known_browser"),
        sa.ForeignKeyConstraint(
            ["person_id"],
            ["person.id"],
            name="fk_known_browser_person_id_person",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_known_browser_person_id", "known_browser", ["person_id"])


def downgrade() -> None:
    op.drop_table("known_browser")
    op.drop_table("guess_bucket")
