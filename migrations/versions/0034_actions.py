"""Actions on machines: policies, the kill switch, and what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0034"
down_revision: str | None = "0029"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TABLES = """
CREATE TABLE action_policy (
    project_id integer NOT NULL, kind text NOT NULL, mode text NOT NULL, config jsonb NOT NULL,
    secrets bytea NOT NULL, secret_hints jsonb NOT NULL DEFAULT '{}',
    changed_at timestamptz NOT NULL DEFAULT now(), changed_by text NOT NULL,
    CONSTRAINT pk_action_policy PRIMARY KEY (project_id, kind),
    CONSTRAINT ck_action_policy_mode CHECK (mode IN ('off', 'dry_run', 'ask', 'automatic')),
    CONSTRAINT fk_action_policy_project_id_project FOREIGN KEY (project_id)
        REFERENCES project (id) ON DELETE CASCADE
);
CREATE TABLE action_switch (
    project_id integer NOT NULL, stopped_at timestamptz, stopped_by text, reason text,
    CONSTRAINT pk_action_switch PRIMARY KEY (project_id),
    CONSTRAINT fk_action_switch_project_id_project FOREIGN KEY (project_id)
        REFERENCES project (id) ON DELETE CASCADE
);
CREATE TABLE machine_action (
    id uuid NOT NULL, kind text NOT NULL, incident_id uuid NOT NULL, host text NOT NULL,
    job text NOT NULL, cause text NOT NULL, gpus jsonb NOT NULL, confidence double precision,
    sessions integer NOT NULL, lost_each_hour double precision, state text NOT NULL,
    limits jsonb NOT NULL, command text NOT NULL, attempt integer NOT NULL,
    next_attempt_at timestamptz NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    ordered_at timestamptz, ordered_by text, done_at timestamptz,
    release_ordered_at timestamptz, released_by text, released_at timestamptz,
    ended_at timestamptz, error_code text, error text, answer text, project_id integer NOT NULL,
    CONSTRAINT pk_machine_action PRIMARY KEY (id),
    CONSTRAINT ck_machine_action_state CHECK (state IN ('dry_run', 'asked', 'held', 'waiting',
        'done', 'failed', 'declined', 'withdrawn', 'releasing', 'released')),
    CONSTRAINT fk_machine_action_project_id_project FOREIGN KEY (project_id)
        REFERENCES project (id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX uq_machine_action_open ON machine_action (project_id, kind, host)
    WHERE state IN ('dry_run', 'asked', 'held', 'waiting', 'done', 'releasing');
CREATE UNIQUE INDEX uq_machine_action_incident ON machine_action (incident_id, kind, host);
CREATE INDEX ix_machine_action_project_id_created_at ON machine_action (project_id, created_at);
CREATE INDEX ix_machine_action_due ON machine_action (next_attempt_at)
    WHERE state IN ('waiting', 'releasing');
"""


def upgrade() -> None:
    op.execute(TABLES)


def downgrade() -> None:
    """Forget what was done: what is out stays out."""
    op.execute("DELETE FROM task_run WHERE kind = 'act_on_machine'")
    op.execute("DROP TABLE machine_action; DROP TABLE action_switch; DROP TABLE action_policy")
