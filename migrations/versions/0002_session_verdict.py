"""One verdict for each session, in a table of its own.

This is the part that expands. The version before goes on with its three projections: columns of
`session`, `alert_facts` and `session_figure`. Triggers make these of the verdicts that this version
writes, and revision 0003 the verdicts of what the version before writes, so that the pages and
rules of both know every session. Revision 0004 makes the verdicts of the sessions that are there. A
later version drops the projections, and the triggers with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TABLE: Final = """
CREATE TABLE session_verdict (
    session_id uuid NOT NULL, project_id integer NOT NULL, document jsonb NOT NULL,
    level text NOT NULL GENERATED ALWAYS AS (document ->> 'level') STORED,
    slowdown float8 GENERATED ALWAYS AS ((document #>> '{headline,slowdown}')::float8) STORED,
    low float8 GENERATED ALWAYS AS ((document #>> '{headline,ci95,0}')::float8) STORED,
    high float8 GENERATED ALWAYS AS ((document #>> '{headline,ci95,1}')::float8) STORED,
    published float8 GENERATED ALWAYS AS ((document #>> '{published,slowdown}')::float8) STORED,
    discrepancy float8 NOT NULL
        GENERATED ALWAYS AS ((document #>> '{discrepancy}')::float8) STORED,
    step_time_s float8 GENERATED ALWAYS AS ((document #>> '{step_time_s}')::float8) STORED,
    measured_s float8 GENERATED ALWAYS AS ((document #>> '{measured_s}')::float8) STORED,
    cause text GENERATED ALWAYS AS (document #>> '{causes,0,cause}') STORED,
    host text GENERATED ALWAYS AS (
        COALESCE(document #>> '{causes,0,host}', document #>> '{worst,0,host}')
    ) STORED,
    CONSTRAINT pk_session_verdict PRIMARY KEY (session_id),
    CONSTRAINT fk_session_verdict_project_id_session_id_session
        FOREIGN KEY (project_id, session_id) REFERENCES session (project_id, id)
        ON UPDATE CASCADE ON DELETE CASCADE
);
"""
# What the version before reads of this one's verdicts, and what becomes of a verdict that it ends.
FOR_BEFORE: Final = """
CREATE FUNCTION session_verdict_ends() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM session_verdict WHERE session_id = NEW.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER session_verdict_ends AFTER UPDATE OF headline ON session
    FOR EACH ROW WHEN (pg_trigger_depth() = 0 AND NEW.headline IS NULL)
    EXECUTE FUNCTION session_verdict_ends();

CREATE FUNCTION session_verdict_for_before() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    d jsonb := NEW.document;
    shown jsonb := nullif(NEW.document->'headline', 'null');
    s jsonb := nullif(NEW.document->'published', 'null');
BEGIN
    UPDATE session SET
        slowdown = (s->>'slowdown')::float8, waste = 1 - 1 / (s->>'slowdown')::float8,
        slowdown_low = (s#>>'{ci95,0}')::float8, slowdown_high = (s#>>'{ci95,1}')::float8,
        gpu_hours_lost = (s->>'gpu_hours_lost')::float8, discrepancy = NEW.discrepancy,
        headline_slowdown = NEW.slowdown, headline_low = NEW.low, headline_high = NEW.high,
        headline_gpu_hours_lost = (shown->>'gpu_hours_lost')::float8,
        headline_kind = shown->>'kind',
        headline = jsonb_build_object(
            'sentence', d->'sentence', 'level', d->'level', 'sizes', d->'sizes',
            'worst', d#>'{worst,0}' || jsonb_build_object('rank', d->'worst_rank'),
            'm_w', d#>'{measures,m_w}', 'm_s', d#>'{measures,m_s}',
            'fb_correlation', d#>'{measures,fb_correlation}', 'top_optype', d->'top_optype',
            'causes', (
                SELECT coalesce(
                    jsonb_agg(cause - 'place' || jsonb_build_object('where', cause->'place')
                        ORDER BY number), '[]')
                FROM jsonb_array_elements(d->'causes') WITH ORDINALITY AS found (cause, number)
                WHERE number <= 2
            )
        )
    WHERE id = NEW.session_id;
    INSERT INTO alert_facts (project_id, session_id, job_id, received_at, document)
    SELECT one.project_id, one.id, one.job_id, one.received_at, jsonb_build_object(
        'session', one.id, 'job', job.name, 'attempt', one.attempt, 'number', one.number,
        'received_at', one.received_at, 'labels', coalesce(one.labels, '{}'),
        'layout', concat('dp=', one.dp, ' pp=', one.pp, ' tp=', one.tp, ' cp=', one.cp, ' vpp=',
            one.vpp),
        'discrepancy', one.discrepancy
    ) || CASE WHEN s IS NULL THEN '{}' ELSE jsonb_build_object(
        'slowdown', s->'slowdown', 'slowdown_ci95', s->'ci95', 'waste', one.waste,
        'gpu_hours_lost', s->'gpu_hours_lost', 'step_time_s', d->'step_time_s',
        'causes', d->'causes', 'worst', d->'worst', 'worst_step', d->'worst_step',
        'fix', d->'fix', 'headline', shown
    ) END
    FROM session AS one JOIN job ON job.id = one.job_id WHERE one.id = NEW.session_id
    ON CONFLICT (session_id) DO UPDATE SET document = excluded.document;
    DELETE FROM session_figure WHERE session_id = NEW.session_id;
    INSERT INTO session_figure (project_id, session_id, job_id, received_at, gpus, stages, context,
        slowdown, lost_each_hour, measured_s, m_w, m_s, correlation, waste, steps, causes)
    SELECT one.project_id, one.id, one.job_id, one.received_at, one.world, one.pp,
        (d#>>'{measures,context}')::bigint, NEW.published, one.world * (1 - 1 / NEW.slowdown),
        NEW.measured_s, (d#>>'{measures,m_w}')::float8, (d#>>'{measures,m_s}')::float8,
        (d#>>'{measures,fb_correlation}')::float8, d#>'{measures,waste}',
        ARRAY(SELECT jsonb_array_elements_text(d#>'{measures,steps}')::float8),
        d->'lost_by_cause'
    FROM session AS one WHERE one.id = NEW.session_id AND NEW.slowdown IS NOT NULL;
    RETURN NULL;
END
$$;
-- What revision 0004 fills is of these projections: it says so in a setting.
CREATE TRIGGER session_verdict_for_before AFTER INSERT OR UPDATE ON session_verdict
    FOR EACH ROW WHEN (
        pg_trigger_depth() = 0 AND current_setting('paceline.filling', true) IS DISTINCT FROM 'on'
    ) EXECUTE FUNCTION session_verdict_for_before();
CREATE FUNCTION session_verdict_ends_for_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE session SET slowdown = NULL, slowdown_low = NULL, slowdown_high = NULL, waste = NULL,
        gpu_hours_lost = NULL, discrepancy = NULL, headline = NULL, headline_slowdown = NULL,
        headline_low = NULL, headline_high = NULL, headline_gpu_hours_lost = NULL,
        headline_kind = NULL
    WHERE id = OLD.session_id;
    DELETE FROM session_figure WHERE session_id = OLD.session_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER session_verdict_ends_for_before AFTER DELETE ON session_verdict
    FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION session_verdict_ends_for_before();
-- Projections that name the job do not follow a session which leaves it.
CREATE FUNCTION session_leaves_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM alert_facts WHERE session_id = OLD.id;
    DELETE FROM session_figure WHERE session_id = OLD.id;
    RETURN NEW;
END
$$;
CREATE TRIGGER session_leaves_job BEFORE UPDATE OF job_id ON session
    FOR EACH ROW WHEN (NEW.job_id <> OLD.job_id) EXECUTE FUNCTION session_leaves_job();
"""


def upgrade() -> None:
    for statements in (TABLE, FOR_BEFORE):
        op.execute(statements)


def downgrade() -> None:
    op.execute("DROP TABLE session_verdict CASCADE")
    op.execute(
        "DROP FUNCTION session_verdict_ends, session_verdict_for_before,"
        " session_verdict_ends_for_before, session_leaves_job CASCADE"
    )
