"""Blobs in an object store: which object a blob is, and which objects nobody refers to.

New tables alone: the previous version goes on beside it as long as no store is configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0023"
down_revision: str | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _now(name: str) -> sa.Column[object]:
    return sa.Column(
        name, sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
    )


def upgrade() -> None:
    op.create_table(
        "blob_object",
        sa.Column("blob_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        _now("stored_at"),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["project.id"],
            name=op.f("fk_blob_object_project_id_project"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("blob_id", name=op.f("pk_blob_object")),
        sa.UniqueConstraint("key", "project_id", name=op.f("uq_blob_object_key_project_id")),
    )
    op.create_table(
        "unreferenced_object",
        sa.Column("key", sa.Text(), nullable=False),
        _now("seen_at"),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_unreferenced_object")),
    )
    op.create_table(
        "object_look",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        _now("due_at"),
        sa.Column("after", sa.Text(), nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_object_look_only_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_object_look")),
    )


def downgrade() -> None:
    # The version before would find none of these bytes: `paceline blobs move --to database` first.
    op.execute(
        "DO $$ BEGIN IF EXISTS (SELECT FROM blob_object) THEN RAISE EXCEPTION"
        " 'blobs are in an object store: paceline blobs move --to database'; END IF; END $$"
    )
    op.drop_table("object_look")
    op.drop_table("unreferenced_object")
    op.drop_table("blob_object")
