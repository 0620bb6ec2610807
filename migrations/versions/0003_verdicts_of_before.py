"""Verdicts of what the version before writes.

A revision of its own: 0002 locks the table of sessions, this one that of facts. Some transactions
write these in one order, some in the other; who holds both locks ends them or is ended by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# From the projections of the version before, which hold all that a report says in a verdict.
OF_BEFORE: Final = """
CREATE FUNCTION verdict_of_before(one session) RETURNS jsonb LANGUAGE sql STABLE AS $$
SELECT jsonb_build_object(
    'sentence', one.headline->'sentence', 'level', one.headline->'level',
    'sizes', one.headline->'sizes', 'discrepancy', one.discrepancy,
    'headline', CASE WHEN one.headline_slowdown IS NOT NULL THEN jsonb_build_object(
        'slowdown', one.headline_slowdown, 'kind', one.headline_kind,
        'gpu_hours_lost', one.headline_gpu_hours_lost,
        'ci95', CASE WHEN one.headline_low IS NOT NULL
            THEN jsonb_build_array(one.headline_low, one.headline_high) END
    ) END,
    'published', CASE WHEN one.slowdown IS NOT NULL THEN jsonb_build_object(
        'slowdown', one.slowdown, 'kind', 'published', 'gpu_hours_lost', one.gpu_hours_lost,
        'ci95', jsonb_build_array(one.slowdown_low, one.slowdown_high)
    ) END,
    'step_time_s', facts.document->'step_time_s', 'measured_s', figure.measured_s,
    'causes', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
            'cause', found.cause->'cause', 'contribution', found.cause->'contribution',
            'confidence', found.cause->'confidence',
            'evidence', coalesce(named.cause, found.cause)->'evidence',
            'where', CASE WHEN one.slowdown IS NULL THEN '[]' ELSE found.cause->'where' END,
            'place', coalesce(named.cause->'where', '{}'), 'cost_s', named.cause->'cost_s',
            'views', coalesce(named.cause->'views', '[]'), 'host', named.cause->'host',
            'runner_up', named.cause->'runner_up'
        ) ORDER BY found.place), '[]')
        FROM jsonb_array_elements(
            CASE WHEN one.slowdown IS NULL THEN one.headline ELSE facts.document END->'causes'
        ) WITH ORDINALITY AS found (cause, place)
        LEFT JOIN jsonb_array_elements(one.headline->'causes')
            WITH ORDINALITY AS named (cause, place) ON named.place = found.place
    ),
    'lost_by_cause', coalesce(figure.causes, '{}'),
    'worst', CASE WHEN one.slowdown IS NULL
        THEN jsonb_build_array((one.headline->'worst') - 'rank') ELSE facts.document->'worst' END,
    'worst_rank', one.headline->'worst'->'rank', 'worst_step', facts.document->'worst_step',
    'top_optype', one.headline->'top_optype', 'fix', facts.document->'fix',
    'measures', jsonb_build_object(
        'm_w', one.headline->'m_w', 'm_s', one.headline->'m_s',
        'fb_correlation', one.headline->'fb_correlation', 'context', figure.context,
        'waste', coalesce(figure.waste, '{}'),
        'steps', coalesce(to_jsonb(figure.steps), '[]')
    )
)
FROM (SELECT one.id) AS this
LEFT JOIN alert_facts AS facts ON facts.session_id = this.id
LEFT JOIN session_figure AS figure ON figure.session_id = this.id
$$;

-- The facts are what the version before writes last of an analysis.
CREATE FUNCTION session_verdict_of_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO session_verdict (project_id, session_id, document)
    SELECT one.project_id, one.id, verdict_of_before(one) FROM session AS one
    WHERE one.id = NEW.session_id AND one.headline IS NOT NULL
    ON CONFLICT (session_id) DO UPDATE SET document = excluded.document;
    RETURN NULL;
END
$$;
CREATE TRIGGER session_verdict_of_before AFTER INSERT OR UPDATE ON alert_facts
    FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION session_verdict_of_before();
"""


def upgrade() -> None:
    op.execute(OF_BEFORE)


def downgrade() -> None:
    op.execute("DROP FUNCTION session_verdict_of_before, verdict_of_before CASCADE")
