"""Requests of Slack's that were taken: none is done twice.

Revision ID: 0035
Revises: 0034
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0035"
down_revision: str | None = "0034"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TABLE = """
CREATE TABLE slack_request (
    project_id integer NOT NULL, digest bytea NOT NULL, at timestamptz NOT NULL,
    CONSTRAINT pk_slack_request PRIMARY KEY (project_id, digest),
    CONSTRAINT fk_slack_request_project_id_project FOREIGN KEY (project_id)
        REFERENCES project (id) ON DELETE CASCADE
);
CREATE INDEX ix_slack_request_project_id_at ON slack_request (project_id, at);
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    op.execute("DROP TABLE slack_request")
