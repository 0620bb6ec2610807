"""Probes of hosts: what their devices reach while no job runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0039"
down_revision: str | None = "0036"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TABLE = """
CREATE TABLE host_probe (
    id uuid NOT NULL, device integer NOT NULL, host text NOT NULL, guessed boolean NOT NULL,
    at timestamptz NOT NULL, index text NOT NULL, model text NOT NULL, gpu text,
    matmul_tflops double precision, memory_copy_gbs double precision,
    host_to_device_gbs double precision, device_to_host_gbs double precision,
    all_reduce_gbs double precision, fault text, project_id integer NOT NULL,
    CONSTRAINT pk_host_probe PRIMARY KEY (project_id, id, device),
    CONSTRAINT fk_host_probe_project_id_project FOREIGN KEY (project_id)
        REFERENCES project (id) ON DELETE CASCADE
);
CREATE INDEX ix_host_probe_project_id_host_at ON host_probe (project_id, host, at);
CREATE INDEX ix_host_probe_project_id_model_at ON host_probe (project_id, model, at);
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    op.execute("DROP TABLE host_probe")
