"""Nodes on which schedulers run the jobs of projects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE scheduled_node (
            node text NOT NULL, job text NOT NULL, kind text NOT NULL, node_id text NOT NULL,
            first_seen_at timestamptz NOT NULL, last_seen_at timestamptz NOT NULL,
            project_id integer NOT NULL,
            CONSTRAINT pk_scheduled_node PRIMARY KEY (project_id, node, job),
            CONSTRAINT fk_scheduled_node_project_id_project FOREIGN KEY (project_id)
                REFERENCES project (id) ON DELETE CASCADE
        );
        CREATE INDEX ix_scheduled_node_node_id ON scheduled_node (node_id);
        CREATE INDEX ix_scheduled_node_node ON scheduled_node (node);
        CREATE TABLE scheduler_inventory (
            id uuid NOT NULL, kind text NOT NULL, next_at timestamptz NOT NULL,
            failures integer NOT NULL, answered_at timestamptz, error_code text, error text,
            project_id integer NOT NULL,
            CONSTRAINT pk_scheduler_inventory PRIMARY KEY (id),
            CONSTRAINT uq_scheduler_inventory_project_id_kind UNIQUE (project_id, kind),
            CONSTRAINT fk_scheduler_inventory_project_id_project FOREIGN KEY (project_id)
                REFERENCES project (id) ON DELETE CASCADE
        );
        """
    )


def downgrade() -> None:
    op.execute("DROP TABLE scheduled_node, scheduler_inventory")
