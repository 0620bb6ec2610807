"""A session may have a headline where S is withheld; the program before sees one number for both.

Revision 0002's function writes for the program of revision 0001, whose sessions with a verdict have
an S, and whose headlines are of two kinds.

Revision ID: 0013
Revises: 0012
Create Date: 2026-11-26
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_AS_CAUSES: Final = """ || CASE WHEN NEW.document#>>'{headline,kind}' = 'launches'
        THEN '{"kind": "causes"}'::jsonb ELSE '{}'::jsonb END"""
_HEADLINE: Final = "nullif(NEW.document->'headline', 'null')"
_PUBLISHED: Final = "nullif(NEW.document->'published', 'null')"
# What stands in the function, and what takes its place.
_CHANGES: Final = (
    (f"shown jsonb := {_HEADLINE};", f"shown jsonb := {_HEADLINE}{_AS_CAUSES};"),
    (f"s jsonb := {_PUBLISHED};", f"s jsonb := coalesce({_PUBLISHED}, {_HEADLINE});"),
    ("NEW.published, one.world", "coalesce(NEW.published, NEW.slowdown), one.world"),
)


def _replace(changes: Sequence[tuple[str, str]]) -> None:
    """Replace parts of the function; each must be there."""
    statements = "\n".join(
        f"""
        IF position($old${old}$old$ in body) = 0 THEN
            RAISE EXCEPTION 'session_verdict_for_before is not as revision 0002 made it';
        END IF;
        body := replace(body, $old${old}$old$, $new${new}$new$);"""
        for old, new in changes
    )
    op.execute(
        f"""
        DO $change$
        DECLARE
            body text := pg_get_functiondef('session_verdict_for_before()'::regprocedure);
        BEGIN {statements}
            EXECUTE body;
        END
        $change$
        """
    )


def upgrade() -> None:
    """Let a headline without S be written for the program before."""
    _replace(_CHANGES)


def downgrade() -> None:
    """Put the function back as it was."""
    _replace([(new, old) for old, new in _CHANGES])
