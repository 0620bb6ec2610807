"""Projects: every row belongs to one, and every reference carries it; tokens, people, audit.

All that is there becomes the project ``default``. Adding the column writes no row: its default is a
constant, kept in the catalogue. It stays, and so do the names that are unique in the installation,
until there is a second project, so that version 0.1.0 may still write (`app.db.single_project`).
The indexes and checks of the references read the tables once, under locks that let nobody write
meanwhile: see "Update" in docs/operations.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TABLES: Final = (
    "alert_channel",
    "alert_delivery",
    "alert_event",
    "alert_facts",
    "alert_group",
    "alert_incident",
    "alert_rule",
    "attempt",
    "blob_part",
    "chunk",
    "intake",
    "job",
    "plan",
    "report",
    "session",
    "task_run",
    "tensor_group",
    "tensor_plan",
    "tensor_report",
    "tensor_switch",
)
# Of nothing but their project.
ROOTS: Final = (
    "alert_channel",
    "alert_rule",
    "blob_part",
    "job",
    "plan",
    "project_usage",
    "task_run",
)
# What others refer to, and by which column.
REFERRED: Final = (
    ("alert_channel", "id"),
    ("alert_group", "id"),
    ("alert_incident", "id"),
    ("intake", "session_id"),
    ("job", "id"),
    ("session", "id"),
    ("tensor_group", "id"),
)
# table, column, table and column that it refers to
REFERENCES: Final = (
    ("session", "job_id", "job", "id"),
    ("report", "session_id", "session", "id"),
    ("intake", "session_id", "session", "id"),
    ("chunk", "session_id", "intake", "session_id"),
    ("alert_facts", "session_id", "session", "id"),
    ("alert_facts", "job_id", "job", "id"),
    ("alert_group", "job_id", "job", "id"),
    ("alert_incident", "group_id", "alert_group", "id"),
    ("alert_event", "incident_id", "alert_incident", "id"),
    ("alert_delivery", "group_id", "alert_group", "id"),
    ("alert_delivery", "channel_id", "alert_channel", "id"),
    ("attempt", "job_id", "job", "id"),
    ("tensor_group", "job_id", "job", "id"),
    ("tensor_plan", "group_id", "tensor_group", "id"),
    ("tensor_report", "group_id", "tensor_group", "id"),
    ("tensor_switch", "job_id", "job", "id"),
)
# Unique in the installation so far, in a project from now on.
NAMES: Final = (
    ("alert_channel", "name"),
    ("alert_rule", "name"),
    ("job", "name"),
    ("plan", "content_sha256"),
)
# Lists of a project, newest first.
LISTS: Final = (("session", "received_at"), ("plan", "created_at"))


def upgrade() -> None:
    _make_tables()
    op.execute("INSERT INTO project (name) VALUES ('default')")
    for table in TABLES:
        op.add_column(
            table,
            sa.Column("project_id", sa.Integer(), server_default=sa.text("1"), nullable=False),
        )
    for table, column in NAMES:
        op.drop_constraint(op.f(f"uq_{table}_{column}"), table)
        op.create_unique_constraint(
            op.f(f"uq_{table}_project_id_{column}"), table, ["project_id", column]
        )
        # After the other one, which is the one that has to be found violated first.
        op.create_unique_constraint(_single(table, column), table, [column])
    for table, column in REFERRED:
        op.create_unique_constraint(
            op.f(f"uq_{table}_project_id_{column}"), table, ["project_id", column]
        )
    for table in ROOTS:
        op.create_foreign_key(
            op.f(f"fk_{table}_project_id_project"),
            table,
            "project",
            ["project_id"],
            ["id"],
            ondelete="CASCADE",
        )
    for table, column, other, key in REFERENCES:
        op.drop_constraint(op.f(f"fk_{table}_{column}_{other}"), table)
        op.create_foreign_key(
            op.f(f"fk_{table}_project_id_{column}_{other}"),
            table,
            other,
            ["project_id", column],
            ["project_id", key],
            onupdate="CASCADE",
            ondelete="CASCADE",
        )
    for table, column in LISTS:
        op.drop_index(f"ix_{table}_{column}_id", table_name=table)
        op.create_index(f"ix_{table}_project_id_{column}_id", table, ["project_id", column, "id"])


def downgrade() -> None:
    # Without projects there is one: what the others have would get into its lists.
    op.execute("DELETE FROM project WHERE id <> 1")
    for table, column in LISTS:
        op.drop_index(f"ix_{table}_project_id_{column}_id", table_name=table)
        op.create_index(f"ix_{table}_{column}_id", table, [column, "id"])
    for table, column, other, key in REFERENCES:
        op.drop_constraint(op.f(f"fk_{table}_project_id_{column}_{other}"), table)
        op.create_foreign_key(
            op.f(f"fk_{table}_{column}_{other}"), table, other, [column], [key], ondelete="CASCADE"
        )
    for table in ROOTS:
        op.drop_constraint(op.f(f"fk_{table}_project_id_project"), table)
    for table, column in REFERRED:
        op.drop_constraint(op.f(f"uq_{table}_project_id_{column}"), table)
    for table, column in NAMES:
        op.drop_constraint(op.f(f"uq_{table}_project_id_{column}"), table)
        # Gone where there was a second project.
        op.drop_constraint(_single(table, column), table, if_exists=True)
        op.create_unique_constraint(op.f(f"uq_{table}_{column}"), table, [column])
    for table in TABLES:
        op.drop_column(table, "project_id")
    for table in (
        "audit_entry",
        "pending_sign_in",
        "browser_session",
        "membership",
        "person",
        "token",
        "project",
    ):
        op.drop_table(table)
    op.execute("DROP FUNCTION audit_entry_stays()")


def _single(table: str, column: str) -> str:
    """Return the name of what `app.db.single_project` ends."""
    return op.f(f"uq_{table}_single_project_{column}")


def _now(name: str) -> sa.Column[object]:
    return sa.Column(
        name, sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
    )


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=True)


def _of_project(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["project_id"],
        ["project.id"],
        name=op.f(f"fk_{table}_project_id_project"),
        ondelete="CASCADE",
    )


def _of_person(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["person_id"],
        ["person.id"],
        name=op.f(f"fk_{table}_person_id_person"),
        ondelete="CASCADE",
    )


def _make_tables() -> None:
    op.create_table(
        "project",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        _now("created_at"),
        _time("deleted_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project")),
        sa.UniqueConstraint("name", name=op.f("uq_project_name")),
    )
    op.create_table(
        "token",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("begins", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        _now("created_at"),
        _time("expires_at"),
        _time("last_used_at"),
        _time("revoked_at"),
        _of_project("token"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token")),
        sa.UniqueConstraint("sha256", name=op.f("uq_token_sha256")),
    )
    op.create_index(
        "uq_token_name",
        "token",
        ["name"],
        unique=True,
        postgresql_where=sa.text("revoked_at IS NULL"),
    )
    op.create_table(
        "person",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("password", sa.Text(), nullable=True),
        sa.Column("issuer", sa.Text(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=True),
        _now("created_at"),
        _time("last_seen_at"),
        sa.CheckConstraint("(issuer IS NULL) = (subject IS NULL)", name=op.f("ck_person_provider")),
        sa.CheckConstraint(
            "(issuer IS NULL) = (password IS NOT NULL)", name=op.f("ck_person_password")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_person")),
        sa.UniqueConstraint("issuer", "subject", name=op.f("uq_person_issuer_subject")),
    )
    op.create_index(
        "uq_person_name",
        "person",
        ["name"],
        unique=True,
        postgresql_where=sa.text("issuer IS NULL"),
    )
    op.create_table(
        "membership",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("person_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "role IN ('reader', 'operator', 'administrator')", name=op.f("ck_membership_role")
        ),
        _of_person("membership"),
        _of_project("membership"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_membership")),
        sa.UniqueConstraint(
            "person_id",
            "project_id",
            name=op.f("uq_membership_person_id_project_id"),
            postgresql_nulls_not_distinct=True,
        ),
    )
    op.create_table(
        "browser_session",
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("person_id", sa.Uuid(), nullable=False),
        _now("created_at"),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        _of_person("browser_session"),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_browser_session")),
    )
    op.create_index("ix_browser_session_expires_at", "browser_session", ["expires_at"])
    op.create_table(
        "pending_sign_in",
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("code_verifier", sa.Text(), nullable=False),
        sa.Column("next_path", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_pending_sign_in")),
    )
    op.create_index("ix_pending_sign_in_expires_at", "pending_sign_in", ["expires_at"])
    op.create_table(
        "audit_entry",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        _now("at"),
        sa.Column("actor_kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=True),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("count", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entry")),
    )
    op.create_index("ix_audit_entry_project_id_id", "audit_entry", ["project_id", "id"])
    op.execute(
        """
        CREATE FUNCTION audit_entry_stays() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'DELETE' AND OLD.at < now() - interval '730 days' THEN
                RETURN OLD;
            END IF;
            RAISE EXCEPTION 'entries of the audit log stay as they are for two years';
        END
        $$
        """
    )
    op.execute(
        "CREATE TRIGGER audit_entry_stays BEFORE UPDATE OR DELETE ON audit_entry"
        " FOR EACH ROW EXECUTE FUNCTION audit_entry_stays()"
    )
