"""What a session loses, in columns of its verdict: sums over many sessions read no documents.

The database writes them with the document, by a trigger. Columns that it generates would write the
whole table anew, and what the version before stores would be in no sum if this version wrote them
itself. Revision 0015 fills the rows that are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

NUMBERS: Final = ("waste", "lost", "lost_to_stragglers", "lost_between", "lost_together")
DOCUMENTS: Final = ("lost_by_cause", "shares")
# `SessionVerdict` has the same: its waste, losses and lost.
WRITTEN: Final = """
CREATE FUNCTION session_verdict_columns() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    d jsonb := NEW.document;
    part jsonb := nullif(NEW.document->'shares', 'null');
    worth_saying CONSTANT float8 := 0.05;
BEGIN
    NEW.waste := coalesce(
        1 - 1 / nullif((d#>>'{headline,slowdown}')::float8, 0), (d#>>'{withheld,waste}')::float8
    );
    NEW.lost_to_stragglers := (part->>'own_slowness')::float8 + (part->>'waiting')::float8
        + (part->>'communication_above')::float8 + (part->>'launch_delays')::float8;
    NEW.lost_between := CASE WHEN part IS NOT NULL THEN coalesce(
        (d->>'lost_between')::float8, (part->>'between_steps_above')::float8
    ) END;
    NEW.lost_together := (part->>'slow_together')::float8;
    NEW.lost := greatest(
        NEW.waste,
        CASE WHEN NEW.lost_between >= worth_saying THEN NEW.lost_between END,
        CASE WHEN NEW.lost_together >= worth_saying THEN NEW.lost_together END
    );
    NEW.lost_by_cause := d->'lost_by_cause';
    NEW.shares := part;
    RETURN NEW;
END
$$;
CREATE TRIGGER session_verdict_columns BEFORE INSERT OR UPDATE OF document ON session_verdict
    FOR EACH ROW EXECUTE FUNCTION session_verdict_columns();
"""


def upgrade() -> None:
    for name in NUMBERS:
        op.add_column("session_verdict", sa.Column(name, sa.Double()))
    for name in DOCUMENTS:
        op.add_column("session_verdict", sa.Column(name, postgresql.JSONB()))
    op.execute(WRITTEN)


def downgrade() -> None:
    op.execute("DROP FUNCTION session_verdict_columns CASCADE")
    for name in (*NUMBERS, *DOCUMENTS):
        op.drop_column("session_verdict", name)
