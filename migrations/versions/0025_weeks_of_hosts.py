"""What readings of hosts add up to by week, so that their list need not count each.

This is the part that expands: triggers keep the sums, whichever version writes readings. Revision
0026 adds up those of before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0025"
down_revision: str | None = "0024"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "host_week",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("week", sa.DateTime(timezone=True), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("sessions", sa.Integer(), nullable=False),
        sa.Column("ranks", sa.Integer(), nullable=False),
        sa.Column("slowdown", sa.Double(), nullable=False),
        sa.Column("computing", sa.Double(), nullable=True),
        sa.Column("first_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "week", "host", name="pk_host_week"),
        sa.ForeignKeyConstraint(
            ["project_id", "job_id"],
            ["job.project_id", "job.id"],
            name="fk_host_week_project_id_job_id_job",
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_host_week_project_id_week", "host_week", ["project_id", "week"])
    # Mondays, midnight UTC.
    op.execute(
        """
        CREATE FUNCTION host_week_of(moment timestamptz) RETURNS timestamptz
        LANGUAGE sql IMMUTABLE PARALLEL SAFE
        RETURN date_bin('7 days', moment, timestamptz '2001-01-01 00:00:00+00')
        """
    )
    # Sums of a job are changed by one transaction at a time, so that each counts what the others
    # wrote: statements that come after the lock see it.
    op.execute(
        """
        CREATE FUNCTION host_week_lock(job bigint) RETURNS void LANGUAGE sql AS $$
            SELECT pg_advisory_xact_lock(hashtextextended('host_week', job))
        $$
        """
    )
    op.execute(
        """
        CREATE FUNCTION host_week_grows() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM host_week_lock(job_id)
            FROM (SELECT DISTINCT job_id FROM come ORDER BY job_id) AS jobs;
            INSERT INTO host_week AS kept (project_id, job_id, week, host, sessions, ranks,
                slowdown, computing, first_seen, last_seen)
            SELECT project_id, job_id, host_week_of(received_at), host, count(*), max(ranks),
                max(slowdown), max(computing), min(received_at), max(received_at)
            FROM come GROUP BY project_id, job_id, host_week_of(received_at), host
            ON CONFLICT (job_id, week, host) DO UPDATE SET
                sessions = kept.sessions + excluded.sessions,
                ranks = greatest(kept.ranks, excluded.ranks),
                slowdown = greatest(kept.slowdown, excluded.slowdown),
                computing = greatest(kept.computing, excluded.computing),
                first_seen = least(kept.first_seen, excluded.first_seen),
                last_seen = greatest(kept.last_seen, excluded.last_seen);
            RETURN NULL;
        END
        $$
        """
    )
    # A largest that goes is found anew. A job that goes takes its sums along.
    op.execute(
        """
        CREATE FUNCTION host_week_shrinks() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM host_week_lock(job_id)
            FROM (SELECT DISTINCT job_id FROM gone ORDER BY job_id) AS jobs;
            WITH changed AS (
                SELECT DISTINCT gone.project_id, gone.job_id, gone.host,
                    host_week_of(gone.received_at) AS week
                FROM gone JOIN job ON job.id = gone.job_id
            ), left_over AS (
                SELECT changed.job_id, changed.week, changed.host, count(*) AS sessions,
                    max(one.ranks) AS ranks, max(one.slowdown) AS slowdown,
                    max(one.computing) AS computing, min(one.received_at) AS first_seen,
                    max(one.received_at) AS last_seen
                FROM changed JOIN host_reading AS one
                    ON one.project_id = changed.project_id AND one.host = changed.host
                    AND one.received_at >= changed.week
                    AND one.received_at < changed.week + interval '7 days'
                    AND one.job_id = changed.job_id
                GROUP BY changed.job_id, changed.week, changed.host
            ), emptied AS (
                DELETE FROM host_week AS kept USING changed
                WHERE kept.job_id = changed.job_id AND kept.week = changed.week
                    AND kept.host = changed.host AND NOT EXISTS (
                        SELECT FROM left_over WHERE left_over.job_id = changed.job_id
                            AND left_over.week = changed.week AND left_over.host = changed.host
                    )
            )
            UPDATE host_week AS kept SET sessions = left_over.sessions, ranks = left_over.ranks,
                slowdown = left_over.slowdown, computing = left_over.computing,
                first_seen = left_over.first_seen, last_seen = left_over.last_seen
            FROM left_over
            WHERE kept.job_id = left_over.job_id AND kept.week = left_over.week
                AND kept.host = left_over.host;
            RETURN NULL;
        END
        $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER host_week_grows AFTER INSERT ON host_reading
        REFERENCING NEW TABLE AS come FOR EACH STATEMENT EXECUTE FUNCTION host_week_grows()
        """
    )
    op.execute(
        """
        CREATE TRIGGER host_week_shrinks AFTER DELETE ON host_reading
        REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION host_week_shrinks()
        """
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER host_week_shrinks ON host_reading")
    op.execute("DROP TRIGGER host_week_grows ON host_reading")
    op.execute("DROP FUNCTION host_week_shrinks()")
    op.execute("DROP FUNCTION host_week_grows()")
    op.execute("DROP FUNCTION host_week_lock(bigint)")
    op.drop_table("host_week")
    op.execute("DROP FUNCTION host_week_of(timestamptz)")
