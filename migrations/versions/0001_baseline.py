"""The schema of version 0.2.0; later revisions change it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TABLES: Final = """
CREATE TABLE action_policy (
    project_id integer NOT NULL, kind text NOT NULL, mode text NOT NULL, config jsonb NOT NULL,
    secrets bytea NOT NULL, secret_hints jsonb NOT NULL DEFAULT '{}',
    changed_at timestamptz NOT NULL DEFAULT now(), changed_by text NOT NULL,
    CONSTRAINT pk_action_policy PRIMARY KEY (project_id, kind),
    CONSTRAINT ck_action_policy_mode CHECK (mode IN ('off', 'dry_run', 'ask', 'automatic'))
);
CREATE TABLE action_switch (
    project_id integer NOT NULL, stopped_at timestamptz, stopped_by text, reason text,
    CONSTRAINT pk_action_switch PRIMARY KEY (project_id)
);
CREATE TABLE alert_assignee (
    incident_id uuid NOT NULL, name text NOT NULL, assigned_by text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(), project_id integer NOT NULL,
    CONSTRAINT pk_alert_assignee PRIMARY KEY (incident_id)
);
CREATE TABLE alert_channel (
    id uuid NOT NULL, name text NOT NULL, kind text NOT NULL, audience text NOT NULL,
    selector jsonb NOT NULL, config jsonb NOT NULL, secrets bytea NOT NULL,
    enabled boolean NOT NULL, generation integer NOT NULL, disabled_reason text,
    hold_until timestamptz, failures integer NOT NULL, last_error text, last_failure_at timestamptz,
    last_success_at timestamptz, created_at timestamptz NOT NULL DEFAULT now(),
    secret_hints jsonb NOT NULL DEFAULT '{}', readable boolean NOT NULL DEFAULT true,
    project_id integer NOT NULL, per_10_min integer NOT NULL DEFAULT 10,
    CONSTRAINT pk_alert_channel PRIMARY KEY (id),
    CONSTRAINT uq_alert_channel_project_id_id UNIQUE (project_id, id),
    CONSTRAINT uq_alert_channel_project_id_name UNIQUE (project_id, name)
);
CREATE TABLE alert_comment (
    id bigint GENERATED ALWAYS AS IDENTITY, incident_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT now(), author text NOT NULL, words text NOT NULL,
    project_id integer NOT NULL,
    CONSTRAINT pk_alert_comment PRIMARY KEY (id)
);
CREATE INDEX ix_alert_comment_incident_id_id ON alert_comment (incident_id, id);
CREATE TABLE alert_delivery (
    id uuid NOT NULL, group_id uuid NOT NULL, channel_id uuid NOT NULL, number bigint NOT NULL,
    generation integer NOT NULL, state text NOT NULL, attempt integer NOT NULL,
    next_attempt_at timestamptz NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    content jsonb, message jsonb, finished_at timestamptz, error_code text, error text,
    answer_status integer, answer text, project_id integer NOT NULL, digest_id uuid,
    started_at timestamptz,
    CONSTRAINT pk_alert_delivery PRIMARY KEY (id),
    CONSTRAINT uq_alert_delivery_channel_id_group_id_number UNIQUE (channel_id, group_id, number),
    CONSTRAINT ck_alert_delivery_state
        CHECK (state IN ('waiting', 'sending', 'delivered', 'failed', 'superseded'))
);
CREATE INDEX ix_alert_delivery_channel_id_started_at ON alert_delivery (channel_id, started_at);
CREATE INDEX ix_alert_delivery_created_at ON alert_delivery (created_at);
CREATE INDEX ix_alert_delivery_digest_id ON alert_delivery (digest_id);
CREATE INDEX ix_alert_delivery_due ON alert_delivery (channel_id, next_attempt_at)
    WHERE state IN ('waiting', 'sending');
CREATE TABLE alert_event (
    id bigint GENERATED ALWAYS AS IDENTITY, incident_id uuid NOT NULL, number bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now(), event text NOT NULL, from_state text,
    to_state text NOT NULL, actor text, note text, session_id uuid, project_id integer NOT NULL,
    CONSTRAINT pk_alert_event PRIMARY KEY (id),
    CONSTRAINT uq_alert_event_incident_id_number UNIQUE (incident_id, number)
);
CREATE TABLE alert_group (
    id uuid NOT NULL, job_id bigint NOT NULL, number bigint NOT NULL, flush_at timestamptz,
    flushed_at timestamptz, look_at timestamptz, project_id integer NOT NULL,
    traceparent text,
    CONSTRAINT pk_alert_group PRIMARY KEY (id), CONSTRAINT uq_alert_group_job_id UNIQUE (job_id),
    CONSTRAINT uq_alert_group_project_id_id UNIQUE (project_id, id)
);
CREATE INDEX ix_alert_group_flush_at ON alert_group (flush_at) WHERE flush_at IS NOT NULL;
CREATE INDEX ix_alert_group_look_at ON alert_group (look_at) WHERE look_at IS NOT NULL;
CREATE TABLE alert_incident (
    id uuid NOT NULL, group_id uuid NOT NULL, fingerprint text NOT NULL, state text NOT NULL,
    opened_at timestamptz NOT NULL, fired_at timestamptz, resolved_at timestamptz,
    silenced_until timestamptz, document jsonb NOT NULL, project_id integer NOT NULL,
    CONSTRAINT pk_alert_incident PRIMARY KEY (id),
    CONSTRAINT uq_alert_incident_project_id_id UNIQUE (project_id, id),
    CONSTRAINT ck_alert_incident_state
        CHECK (state IN ('pending', 'firing', 'acknowledged', 'silenced', 'resolved'))
);
CREATE INDEX ix_alert_incident_group_id_resolved_at ON alert_incident (group_id, resolved_at);
CREATE INDEX ix_alert_incident_state_fired_at ON alert_incident (state, fired_at);
CREATE UNIQUE INDEX uq_alert_incident_open ON alert_incident (group_id, fingerprint)
    WHERE state <> 'resolved';
CREATE TABLE alert_on_host (
    incident_id uuid NOT NULL, lead_id uuid NOT NULL, host text NOT NULL, over_at timestamptz,
    stirred_at timestamptz, project_id integer NOT NULL,
    CONSTRAINT pk_alert_on_host PRIMARY KEY (incident_id)
);
CREATE INDEX ix_alert_on_host_lead_id ON alert_on_host (lead_id);
CREATE INDEX ix_alert_on_host_stirred_at ON alert_on_host (stirred_at) WHERE stirred_at IS NOT NULL;
CREATE UNIQUE INDEX uq_alert_on_host_lead ON alert_on_host (project_id, host)
    WHERE incident_id = lead_id AND over_at IS NULL;
CREATE TABLE alert_rule (
    id uuid NOT NULL, name text NOT NULL, document jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now(),
    project_id integer NOT NULL, attached jsonb NOT NULL DEFAULT '{}',
    CONSTRAINT pk_alert_rule PRIMARY KEY (id),
    CONSTRAINT uq_alert_rule_project_id_name UNIQUE (project_id, name)
);
CREATE TABLE analysis_duration (
    limit_s float8 NOT NULL, analyses bigint NOT NULL, total_s float8 NOT NULL,
    CONSTRAINT pk_analysis_duration PRIMARY KEY (limit_s)
);
CREATE TABLE applied_fix (
    id bigint GENERATED ALWAYS AS IDENTITY, project_id integer NOT NULL, job_id bigint NOT NULL,
    session_id uuid NOT NULL, action text NOT NULL, title text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(), applied_by text, source text NOT NULL,
    step_time_s float8 NOT NULL, predicted_gain float8 NOT NULL, at_most boolean NOT NULL,
    measured_by uuid, realized_step_time_s float8, realized_gain float8, unlike text,
    CONSTRAINT pk_applied_fix PRIMARY KEY (id),
    CONSTRAINT uq_applied_fix_session_id_action_title UNIQUE (session_id, action, title),
    CONSTRAINT ck_applied_fix_source CHECK (source IN ('person', 'metadata'))
);
CREATE INDEX ix_applied_fix_job_id_applied_at ON applied_fix (job_id, applied_at);
CREATE INDEX ix_applied_fix_measured_by ON applied_fix (measured_by);
CREATE INDEX ix_applied_fix_project_id_applied_at ON applied_fix (project_id, applied_at);
CREATE TABLE attempt (
    job_id bigint NOT NULL, number integer NOT NULL, run_id text NOT NULL, restart integer NOT NULL,
    announced_at timestamptz NOT NULL DEFAULT now(), project_id integer NOT NULL,
    CONSTRAINT pk_attempt PRIMARY KEY (job_id, number),
    CONSTRAINT uq_attempt_job_id_run_id_restart UNIQUE (job_id, run_id, restart)
);
CREATE INDEX ix_attempt_project_id ON attempt (project_id);
CREATE TABLE audit_entry (
    id bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT now(),
    actor_kind text NOT NULL, actor text NOT NULL, action text NOT NULL, subject text NOT NULL,
    project_id integer, project text, detail text, count integer NOT NULL DEFAULT 1,
    CONSTRAINT pk_audit_entry PRIMARY KEY (id)
);
CREATE INDEX ix_audit_entry_project_id_id ON audit_entry (project_id, id);
CREATE TABLE blob_object (
    blob_id uuid NOT NULL, key text NOT NULL, bytes bigint NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(), project_id integer NOT NULL,
    CONSTRAINT pk_blob_object PRIMARY KEY (blob_id),
    CONSTRAINT uq_blob_object_key_project_id UNIQUE (key, project_id)
);
-- A part of 4 MiB is one row here and 2,100 in the TOAST table. By default, vacuuming waits until
-- 20 % of the table is dead: 20 GB of 100 GB of traces.
CREATE TABLE blob_part (
    blob_id uuid NOT NULL, part integer NOT NULL, data bytea NOT NULL, project_id integer NOT NULL,
    CONSTRAINT pk_blob_part PRIMARY KEY (blob_id, part)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 64,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 100000
);
-- Traces are compressed already: trying again costs processor time on every write.
ALTER TABLE blob_part ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE browser_session (
    sha256 bytea NOT NULL, person_id uuid NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    CONSTRAINT pk_browser_session PRIMARY KEY (sha256)
);
CREATE INDEX ix_browser_session_expires_at ON browser_session (expires_at);
CREATE TABLE chunk (
    session_id uuid NOT NULL, producer text NOT NULL, number integer NOT NULL,
    sha256 bytea NOT NULL, received_at timestamptz NOT NULL DEFAULT now(), final boolean NOT NULL,
    body_bytes bigint NOT NULL, operations bigint NOT NULL, cells integer[] NOT NULL, blob uuid,
    project_id integer NOT NULL,
    CONSTRAINT pk_chunk PRIMARY KEY (session_id, producer, number)
);
CREATE TABLE doomed_blob (
    blob_id uuid NOT NULL, project_id integer NOT NULL,
    CONSTRAINT pk_doomed_blob PRIMARY KEY (blob_id)
);
CREATE TABLE gpu_place (
    gpu text NOT NULL, host text NOT NULL, guessed boolean NOT NULL,
    first_seen timestamptz NOT NULL, last_seen timestamptz NOT NULL, project_id integer NOT NULL,
    CONSTRAINT pk_gpu_place PRIMARY KEY (gpu, host, project_id)
);
CREATE INDEX ix_gpu_place_project_id_host ON gpu_place (project_id, host);
CREATE TABLE guess_bucket (
    key bytea NOT NULL, owed_until timestamptz NOT NULL,
    CONSTRAINT pk_guess_bucket PRIMARY KEY (key)
);
CREATE INDEX ix_guess_bucket_owed_until ON guess_bucket (owed_until);
CREATE TABLE hang (
    id uuid NOT NULL, job_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), changed_at timestamptz NOT NULL DEFAULT now(),
    content_sha256 bytea, over_at timestamptz, over_by text,
    kind text NOT NULL, sentence text NOT NULL, since timestamptz, ranks integer NOT NULL,
    waiting integer NOT NULL, culprits integer NOT NULL, confidence float8 NOT NULL,
    document bytea NOT NULL, project_id integer NOT NULL,
    CONSTRAINT pk_hang PRIMARY KEY (id),
    CONSTRAINT uq_hang_project_id_id UNIQUE (project_id, id),
    CONSTRAINT uq_hang_job_id_content_sha256 UNIQUE (job_id, content_sha256),
    CONSTRAINT ck_hang_kind CHECK (kind IN ('never_entered', 'device_stuck', 'silent', 'mismatch',
        'all_entered', 'nothing_pending'))
);
CREATE INDEX ix_hang_job_id_created_at ON hang (job_id, created_at);
CREATE INDEX ix_hang_project_id_created_at ON hang (project_id, created_at);
-- It is compressed already.
ALTER TABLE hang ALTER COLUMN document SET STORAGE EXTERNAL;
CREATE TABLE hang_file (
    hang_id uuid NOT NULL, kind text NOT NULL, rank integer NOT NULL, content bytea NOT NULL,
    project_id integer NOT NULL,
    CONSTRAINT pk_hang_file PRIMARY KEY (hang_id, kind, rank),
    CONSTRAINT ck_hang_file_kind
        CHECK (kind IN ('flight_recorder', 'py_spy', 'nccl_ras', 'process'))
);
-- It is compressed already.
ALTER TABLE hang_file ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE TABLE hang_upload (
    id uuid NOT NULL, job_id bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    content_sha256 bytea NOT NULL, state text NOT NULL, reason_code text, reason text,
    hang_id uuid, not_read jsonb NOT NULL DEFAULT '[]', project_id integer NOT NULL,
    CONSTRAINT pk_hang_upload PRIMARY KEY (id),
    CONSTRAINT uq_hang_upload_project_id_id UNIQUE (project_id, id),
    CONSTRAINT uq_hang_upload_job_id_content_sha256 UNIQUE (job_id, content_sha256),
    CONSTRAINT ck_hang_upload_state CHECK (state IN ('queued', 'reading', 'read', 'refused',
        'failed'))
);
CREATE INDEX ix_hang_upload_project_id_created_at ON hang_upload (project_id, created_at);
CREATE TABLE hang_upload_part (
    upload_id uuid NOT NULL, part integer NOT NULL, content bytea NOT NULL,
    project_id integer NOT NULL,
    CONSTRAINT pk_hang_upload_part PRIMARY KEY (upload_id, part)
);
-- It is compressed by the sender.
ALTER TABLE hang_upload_part ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE TABLE host_probe (
    id uuid NOT NULL, device integer NOT NULL, host text NOT NULL, guessed boolean NOT NULL,
    at timestamptz NOT NULL, index text NOT NULL, model text NOT NULL, gpu text,
    matmul_tflops float8, memory_copy_gbs float8,
    host_to_device_gbs float8, device_to_host_gbs float8,
    all_reduce_gbs float8, fault text, project_id integer NOT NULL,
    CONSTRAINT pk_host_probe PRIMARY KEY (project_id, id, device)
);
CREATE INDEX ix_host_probe_project_id_host_at ON host_probe (project_id, host, at);
CREATE INDEX ix_host_probe_project_id_model_at ON host_probe (project_id, model, at);
CREATE TABLE host_reading (
    session_id uuid NOT NULL, host text NOT NULL, job_id bigint NOT NULL,
    received_at timestamptz NOT NULL, ranks integer NOT NULL, workers integer NOT NULL,
    slowdown float8 NOT NULL, computing float8, cause text, lost_each_hour float8 NOT NULL,
    measured_s float8 NOT NULL, gpus jsonb NOT NULL, project_id integer NOT NULL,
    guessed boolean NOT NULL DEFAULT false,
    CONSTRAINT pk_host_reading PRIMARY KEY (session_id, host)
);
CREATE INDEX ix_host_reading_job_id ON host_reading (job_id);
CREATE INDEX ix_host_reading_of_all ON host_reading (project_id, received_at)
    INCLUDE (host, job_id, ranks, slowdown, computing);
CREATE INDEX ix_host_reading_of_slow ON host_reading (project_id, received_at)
    WHERE cause IS NOT NULL;
CREATE INDEX ix_host_reading_project_id_host_received_at
    ON host_reading (project_id, host, received_at);
CREATE TABLE host_repair (
    id bigint GENERATED ALWAYS AS IDENTITY, host text NOT NULL, gpu text, what text NOT NULL,
    by text NOT NULL, at timestamptz NOT NULL, noted_at timestamptz NOT NULL DEFAULT now(),
    project_id integer NOT NULL,
    CONSTRAINT pk_host_repair PRIMARY KEY (id)
);
CREATE INDEX ix_host_repair_project_id_host_at ON host_repair (project_id, host, at);
CREATE TABLE host_week (
    job_id bigint NOT NULL, week timestamptz NOT NULL, host text NOT NULL,
    sessions integer NOT NULL, ranks integer NOT NULL, slowdown float8 NOT NULL, computing float8,
    first_seen timestamptz NOT NULL, last_seen timestamptz NOT NULL, project_id integer NOT NULL,
    CONSTRAINT pk_host_week PRIMARY KEY (job_id, week, host)
);
CREATE INDEX ix_host_week_project_id_week ON host_week (project_id, week);
CREATE TABLE inbox (
    id bigint GENERATED BY DEFAULT AS IDENTITY, kind text NOT NULL, session_id uuid,
    producer text NOT NULL, number integer NOT NULL, sha256 bytea NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(), final boolean NOT NULL,
    body_bytes bigint NOT NULL, content_type text, format_name text, meta jsonb, body bytea,
    claim_token uuid, lease_until timestamptz, tries integer NOT NULL DEFAULT 0,
    code text, reason text, faults jsonb, project_id integer NOT NULL,
    job_id bigint, attempt integer,
    CONSTRAINT pk_inbox PRIMARY KEY (id),
    CONSTRAINT uq_inbox_session_id_kind_producer_number
        UNIQUE (session_id, kind, producer, number),
    CONSTRAINT ck_inbox_subject CHECK (CASE kind WHEN 'chunk' THEN session_id IS NOT NULL
        ELSE job_id IS NOT NULL AND attempt IS NOT NULL END)
);
ALTER TABLE inbox ALTER COLUMN body SET STORAGE EXTERNAL;
-- A queue: rows come and go, and what is gone must not slow down who looks for the oldest.
ALTER TABLE inbox SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX ix_inbox_waiting ON inbox (received_at) WHERE code IS NULL;
CREATE INDEX ix_inbox_pulse ON inbox (job_id, attempt, id) WHERE kind = 'pulse';
CREATE TABLE ingest_refusal (
    project_id integer NOT NULL, day date NOT NULL, code text NOT NULL, bodies bigint NOT NULL,
    bytes bigint NOT NULL, last_at timestamptz NOT NULL, last_job text NOT NULL,
    CONSTRAINT pk_ingest_refusal PRIMARY KEY (project_id, day, code)
);
CREATE TABLE intake (
    session_id uuid NOT NULL, chunks integer NOT NULL, last_chunk_at timestamptz NOT NULL,
    longest_gap_s float8 NOT NULL, refused_chunks integer NOT NULL, refused_bytes bigint NOT NULL,
    sealed_at timestamptz, sealed_by text, merged jsonb, producers integer NOT NULL,
    project_id integer NOT NULL, pause_s float8 NOT NULL DEFAULT 0, traceparent text,
    CONSTRAINT pk_intake PRIMARY KEY (session_id),
    CONSTRAINT uq_intake_project_id_session_id UNIQUE (project_id, session_id)
);
CREATE INDEX ix_intake_open ON intake (last_chunk_at) WHERE sealed_at IS NULL;
CREATE TABLE job (
    id bigint GENERATED ALWAYS AS IDENTITY, name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), project_id integer NOT NULL,
    archived_at timestamptz, finished_at timestamptz,
    CONSTRAINT pk_job PRIMARY KEY (id), CONSTRAINT uq_job_project_id_id UNIQUE (project_id, id),
    CONSTRAINT uq_job_project_id_name UNIQUE (project_id, name)
);
CREATE TABLE job_note (
    id bigint GENERATED ALWAYS AS IDENTITY, project_id integer NOT NULL, job_id bigint NOT NULL,
    at timestamptz NOT NULL, kind text NOT NULL, words text NOT NULL, author text NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_job_note PRIMARY KEY (id),
    CONSTRAINT ck_job_note_kind
        CHECK (kind IN ('note', 'deployment', 'config_change', 'checkpoint', 'maintenance'))
);
CREATE INDEX ix_job_note_job_id_at ON job_note (job_id, at);
CREATE INDEX ix_job_note_project_id ON job_note (project_id);
CREATE TABLE known_browser (
    sha256 bytea NOT NULL, person_id uuid NOT NULL, seen_at timestamptz NOT NULL,
    CONSTRAINT pk_known_browser PRIMARY KEY (sha256)
);
CREATE INDEX ix_known_browser_person_id ON known_browser (person_id);
CREATE TABLE machine_action (
    id uuid NOT NULL, kind text NOT NULL, incident_id uuid NOT NULL, host text NOT NULL,
    job text NOT NULL, cause text NOT NULL, gpus jsonb NOT NULL, confidence float8,
    sessions integer NOT NULL, lost_each_hour float8, state text NOT NULL,
    limits jsonb NOT NULL, command text NOT NULL, attempt integer NOT NULL,
    next_attempt_at timestamptz NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    ordered_at timestamptz, ordered_by text, done_at timestamptz,
    release_ordered_at timestamptz, released_by text, released_at timestamptz,
    ended_at timestamptz, error_code text, error text, answer text, project_id integer NOT NULL,
    hang jsonb,
    CONSTRAINT pk_machine_action PRIMARY KEY (id),
    CONSTRAINT ck_machine_action_state CHECK (state IN ('dry_run', 'asked', 'held', 'waiting',
        'done', 'failed', 'declined', 'withdrawn', 'releasing', 'released'))
);
CREATE UNIQUE INDEX uq_machine_action_open ON machine_action (project_id, kind, host)
    WHERE state IN ('dry_run', 'asked', 'held', 'waiting', 'done', 'releasing')
        AND hang IS NULL;
CREATE UNIQUE INDEX uq_machine_action_incident ON machine_action (incident_id, kind, host);
CREATE INDEX ix_machine_action_project_id_created_at ON machine_action (project_id, created_at);
CREATE INDEX ix_machine_action_due ON machine_action (next_attempt_at)
    WHERE state IN ('waiting', 'releasing');
CREATE TABLE membership (
    id bigint GENERATED ALWAYS AS IDENTITY, person_id uuid NOT NULL, project_id integer,
    role text NOT NULL,
    CONSTRAINT pk_membership PRIMARY KEY (id),
    CONSTRAINT uq_membership_person_id_project_id UNIQUE NULLS NOT DISTINCT (person_id, project_id),
    CONSTRAINT ck_membership_role CHECK (role IN ('reader', 'operator', 'administrator'))
);
CREATE TABLE object_look (
    id integer NOT NULL, due_at timestamptz NOT NULL DEFAULT now(), after text,
    CONSTRAINT pk_object_look PRIMARY KEY (id), CONSTRAINT ck_object_look_only_one CHECK (id = 1)
);
CREATE TABLE pending_sign_in (
    sha256 bytea NOT NULL, state text NOT NULL, nonce text NOT NULL, code_verifier text NOT NULL,
    next_path text NOT NULL, expires_at timestamptz NOT NULL,
    CONSTRAINT pk_pending_sign_in PRIMARY KEY (sha256)
);
CREATE INDEX ix_pending_sign_in_expires_at ON pending_sign_in (expires_at);
CREATE TABLE person (
    id uuid NOT NULL, name text NOT NULL, password text, issuer text, subject text,
    created_at timestamptz NOT NULL DEFAULT now(), last_seen_at timestamptz,
    disabled_at timestamptz,
    CONSTRAINT pk_person PRIMARY KEY (id),
    CONSTRAINT uq_person_issuer_subject UNIQUE (issuer, subject),
    CONSTRAINT ck_person_password CHECK ((issuer IS NULL) = (password IS NOT NULL)),
    CONSTRAINT ck_person_provider CHECK ((issuer IS NULL) = (subject IS NULL))
);
CREATE UNIQUE INDEX uq_person_name ON person (name) WHERE issuer IS NULL;
CREATE TABLE plan (
    id uuid NOT NULL, content_sha256 bytea NOT NULL, name text, method text NOT NULL,
    objective text NOT NULL, time_limit_s float8 NOT NULL, spec jsonb NOT NULL,
    layers integer NOT NULL, gpus integer NOT NULL, state text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    state_changed_at timestamptz NOT NULL DEFAULT now(), gap float8, reason_code text, reason text,
    reason_detail jsonb, result_blob uuid, headline jsonb, project_id integer NOT NULL,
    CONSTRAINT pk_plan PRIMARY KEY (id),
    CONSTRAINT uq_plan_project_id_content_sha256 UNIQUE (project_id, content_sha256),
    CONSTRAINT ck_plan_result CHECK ((state = 'planned') = (result_blob IS NOT NULL)),
    CONSTRAINT ck_plan_state
        CHECK (state IN ('queued', 'planning', 'planned', 'infeasible', 'canceled', 'failed'))
);
CREATE INDEX ix_plan_project_id_created_at_id ON plan (project_id, created_at, id);
CREATE TABLE project (
    id integer GENERATED BY DEFAULT AS IDENTITY, name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), deleted_at timestamptz,
    pulse_off boolean NOT NULL DEFAULT false,
    CONSTRAINT pk_project PRIMARY KEY (id), CONSTRAINT uq_project_name UNIQUE (name)
);
CREATE TABLE project_usage (
    project_id integer NOT NULL, hour timestamptz NOT NULL, hour_sessions integer NOT NULL,
    bytes bigint NOT NULL, operations bigint NOT NULL,
    CONSTRAINT pk_project_usage PRIMARY KEY (project_id)
);
CREATE TABLE pulse_block (
    id bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY, job_id bigint NOT NULL,
    attempt integer NOT NULL, minute timestamptz NOT NULL, part integer NOT NULL,
    rows integer NOT NULL, body bytea NOT NULL, project_id integer NOT NULL,
    CONSTRAINT pk_pulse_block PRIMARY KEY (id),
    CONSTRAINT uq_pulse_block_job_id_attempt_minute_part UNIQUE (job_id, attempt, minute, part)
);
CREATE INDEX ix_pulse_block_minute ON pulse_block (minute);
-- Blocks are compressed already. The latest are rewritten every few seconds, the oldest deleted.
ALTER TABLE pulse_block ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE pulse_block SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_scale_factor = 0.02
);
CREATE TABLE pulse_notice (
    job_id bigint NOT NULL, attempt integer NOT NULL, number integer NOT NULL, kind text NOT NULL,
    ranks integer[] NOT NULL, hosts text[] NOT NULL, factor float8,
    from_step bigint NOT NULL, noticed_step bigint NOT NULL, noticed_time_ns bigint NOT NULL,
    noticed_at timestamptz NOT NULL DEFAULT now(), cleared_step bigint, evidence jsonb NOT NULL,
    project_id integer NOT NULL, cleared_at timestamptz, fires_at timestamptz, request_id bigint,
    outcome text, session_id uuid, cause text NOT NULL DEFAULT '', baseline_ns float8,
    step_ns float8, after_ns float8, lost_ns float8 NOT NULL DEFAULT 0,
    CONSTRAINT pk_pulse_notice PRIMARY KEY (job_id, attempt, number),
    CONSTRAINT ck_pulse_notice_kind CHECK (kind IN ('slow_rank', 'slow_job', 'spells', 'drift',
        'hang', 'silent')),
    CONSTRAINT ck_pulse_notice_outcome CHECK (outcome IN ('confirmed', 'explained', 'cleared',
        'unconfirmed'))
);
CREATE INDEX ix_pulse_notice_job_id_noticed_at ON pulse_notice (job_id, noticed_at);
CREATE INDEX ix_pulse_notice_open ON pulse_notice (job_id) WHERE cleared_at IS NULL;
CREATE TABLE pulse_span (
    id bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY, job_id bigint NOT NULL,
    attempt integer NOT NULL, seconds integer NOT NULL, start timestamptz NOT NULL,
    ranks integer NOT NULL, steps integer NOT NULL, busy_s float8 NOT NULL,
    step_median_s float8 NOT NULL, step_p95_s float8 NOT NULL,
    step_worst_s float8 NOT NULL, compute_median_s float8 NOT NULL,
    compute_p95_s float8 NOT NULL, tokens bigint NOT NULL,
    lost_gpu_s float8 NOT NULL, worst_ranks integer[] NOT NULL,
    worst_ratios float8[] NOT NULL, worst_hosts text[] NOT NULL,
    worst_gpus integer[] NOT NULL, sums bytea NOT NULL, project_id integer NOT NULL,
    CONSTRAINT pk_pulse_span PRIMARY KEY (id),
    CONSTRAINT uq_pulse_span_job_id_seconds_start_attempt
        UNIQUE (job_id, seconds, start, attempt)
);
CREATE INDEX ix_pulse_span_start ON pulse_span (start);
ALTER TABLE pulse_span ALTER COLUMN sums SET STORAGE EXTERNAL;
ALTER TABLE pulse_span SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000
);
CREATE TABLE pulse_state (
    job_id bigint NOT NULL, attempt integer NOT NULL, advanced_at timestamptz, state bytea,
    rows bigint NOT NULL DEFAULT 0, counts jsonb NOT NULL DEFAULT '{}',
    claim_token uuid, lease_until timestamptz, tries integer NOT NULL DEFAULT 0,
    project_id integer NOT NULL, clocks jsonb NOT NULL DEFAULT '{}',
    lost_gpu_s float8 NOT NULL DEFAULT 0, pace bytea, places bytea, hardware bytea,
    CONSTRAINT pk_pulse_state PRIMARY KEY (job_id, attempt)
);
-- All four are compressed already, and rewritten every few seconds.
ALTER TABLE pulse_state
    ALTER COLUMN state SET STORAGE EXTERNAL, ALTER COLUMN pace SET STORAGE EXTERNAL,
    ALTER COLUMN places SET STORAGE EXTERNAL, ALTER COLUMN hardware SET STORAGE EXTERNAL;
ALTER TABLE pulse_state SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE recording_request (
    id bigint GENERATED ALWAYS AS IDENTITY,
    job_id bigint NOT NULL, attempt integer NOT NULL, steps integer NOT NULL, reason text NOT NULL,
    asked_by text, asked_at timestamptz NOT NULL DEFAULT now(), until timestamptz NOT NULL,
    window_s float8 NOT NULL, handed_at timestamptz, handed integer NOT NULL DEFAULT 0,
    session_id uuid, project_id integer NOT NULL,
    CONSTRAINT pk_recording_request PRIMARY KEY (id)
);
CREATE INDEX ix_recording_request_job_id_asked_at ON recording_request (job_id, asked_at);
CREATE INDEX ix_recording_request_open ON recording_request (job_id, attempt)
    WHERE session_id IS NULL;
CREATE TABLE report (
    session_id uuid NOT NULL, document_blob uuid NOT NULL, heatmap_blob uuid,
    created_at timestamptz NOT NULL DEFAULT now(), project_id integer NOT NULL,
    CONSTRAINT pk_report PRIMARY KEY (session_id)
);
CREATE TABLE retention (
    project_id integer NOT NULL, rules jsonb NOT NULL, looked_at timestamptz,
    CONSTRAINT pk_retention PRIMARY KEY (project_id)
);
CREATE TABLE saved_view (
    id uuid NOT NULL, owner text NOT NULL, name text NOT NULL, query text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), project_id integer NOT NULL,
    CONSTRAINT pk_saved_view PRIMARY KEY (id),
    CONSTRAINT uq_saved_view_project_id_owner_name UNIQUE (project_id, owner, name)
);
CREATE TABLE session (
    id uuid NOT NULL, job_id bigint NOT NULL, attempt integer NOT NULL, number integer NOT NULL,
    content_sha256 bytea, state text NOT NULL, received_at timestamptz NOT NULL DEFAULT now(),
    state_changed_at timestamptz NOT NULL DEFAULT now(), meta jsonb NOT NULL, dp integer NOT NULL,
    pp integer NOT NULL, tp integer NOT NULL, cp integer NOT NULL, vpp integer NOT NULL,
    world integer NOT NULL, trace_format text NOT NULL, body_bytes bigint NOT NULL,
    operations bigint NOT NULL, steps integer NOT NULL, trace_blob uuid, reason_code text,
    reason text, reason_detail jsonb, project_id integer NOT NULL,
    pinned boolean NOT NULL DEFAULT false, trace_removed_at timestamptz,
    report_removed_at timestamptz, labels jsonb,
    CONSTRAINT pk_session PRIMARY KEY (id),
    CONSTRAINT uq_session_job_id_attempt_number UNIQUE (job_id, attempt, number),
    CONSTRAINT uq_session_job_id_content_sha256 UNIQUE (job_id, content_sha256),
    CONSTRAINT uq_session_project_id_id UNIQUE (project_id, id),
    CONSTRAINT ck_session_state
        CHECK (state IN (
            'open', 'queued', 'analyzing', 'analyzed', 'no_verdict', 'discarded', 'failed'
        ))
);
CREATE INDEX ix_session_job_id_received_at ON session (job_id, received_at);
CREATE INDEX ix_session_project_id_received_at_id ON session (project_id, received_at, id);
CREATE INDEX ix_session_state_received_at ON session (state, received_at);
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
    waste float8, lost float8, lost_to_stragglers float8, lost_between float8,
    lost_together float8, lost_by_cause jsonb, shares jsonb,
    CONSTRAINT pk_session_verdict PRIMARY KEY (session_id)
);
CREATE TABLE slack_request (
    project_id integer NOT NULL, digest bytea NOT NULL, at timestamptz NOT NULL,
    CONSTRAINT pk_slack_request PRIMARY KEY (project_id, digest)
);
CREATE INDEX ix_slack_request_project_id_at ON slack_request (project_id, at);
CREATE TABLE task_run (
    id uuid NOT NULL, kind text NOT NULL, subject_id uuid NOT NULL, state text NOT NULL,
    attempt integer NOT NULL, claim_token uuid, lease_until timestamptz, error_code text,
    error text, created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz,
    finished_at timestamptz, project_id integer NOT NULL, traceparent text,
    CONSTRAINT pk_task_run PRIMARY KEY (id),
    CONSTRAINT ck_task_run_claim CHECK (
        (state = 'running') = (claim_token IS NOT NULL)
        AND (claim_token IS NULL) = (lease_until IS NULL)
    ),
    CONSTRAINT ck_task_run_state CHECK (state IN ('queued', 'running', 'done', 'dead'))
);
CREATE INDEX ix_task_run_due ON task_run (state, lease_until) WHERE state IN ('queued', 'running');
CREATE UNIQUE INDEX uq_task_run_open ON task_run (kind, subject_id)
    WHERE state IN ('queued', 'running');
CREATE TABLE tensor_group (
    id bigint GENERATED ALWAYS AS IDENTITY, job_id bigint NOT NULL, attempt integer NOT NULL,
    name text NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), world_size integer NOT NULL,
    columns integer NOT NULL, unit integer NOT NULL, max_gamma float8 NOT NULL,
    apply boolean NOT NULL, methods text[] NOT NULL, costs jsonb, sizes jsonb, ranks integer[],
    hosts text[], reports integer NOT NULL DEFAULT 0, step bigint, reported_at timestamptz,
    over integer NOT NULL DEFAULT 0, calm integer NOT NULL DEFAULT 0,
    drifted integer NOT NULL DEFAULT 0, missed integer NOT NULL DEFAULT 0,
    rung integer NOT NULL DEFAULT 0, since_step bigint, replace_node boolean NOT NULL DEFAULT false,
    refused text[] NOT NULL DEFAULT '{}', version integer NOT NULL DEFAULT 0,
    project_id integer NOT NULL,
    CONSTRAINT pk_tensor_group PRIMARY KEY (id),
    CONSTRAINT uq_tensor_group_job_id_name_attempt UNIQUE (job_id, name, attempt),
    CONSTRAINT uq_tensor_group_project_id_id UNIQUE (project_id, id),
    CONSTRAINT ck_tensor_group_world_size CHECK (world_size >= 2)
);
CREATE TABLE tensor_plan (
    group_id bigint NOT NULL, version integer NOT NULL, state text NOT NULL, method text NOT NULL,
    criterion text, apply boolean NOT NULL, budget float8 NOT NULL, ranks jsonb NOT NULL,
    slowest_time_s float8 NOT NULL, fastest_time_s float8 NOT NULL,
    predicted_time_s float8 NOT NULL, extra_bytes bigint,
    created_at timestamptz NOT NULL DEFAULT now(), created_step bigint NOT NULL,
    expires_step bigint NOT NULL, acknowledged integer[] NOT NULL DEFAULT '{}',
    applied_step bigint, ended_step bigint, reason text, measured_time_s float8,
    measured_reports integer NOT NULL DEFAULT 0, project_id integer NOT NULL,
    CONSTRAINT pk_tensor_plan PRIMARY KEY (group_id, version),
    CONSTRAINT ck_tensor_plan_state
        CHECK (state IN (
            'advised', 'offered', 'in_force', 'refused', 'withdrawn', 'superseded', 'expired'
        ))
);
CREATE TABLE tensor_report (
    group_id bigint NOT NULL, number integer NOT NULL, step bigint NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(), times_s float8[] NOT NULL,
    matmul_s float8[] NOT NULL, free_times_s float8[] NOT NULL, free_matmul_s float8[] NOT NULL,
    measured_step_s float8, plan_version integer, project_id integer NOT NULL,
    CONSTRAINT pk_tensor_report PRIMARY KEY (group_id, number)
);
CREATE TABLE tensor_switch (
    id bigint GENERATED ALWAYS AS IDENTITY, job_id bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now(), by text NOT NULL, mode text NOT NULL, max_gamma float8,
    expires_after_steps integer NOT NULL, project_id integer NOT NULL,
    CONSTRAINT pk_tensor_switch PRIMARY KEY (id),
    CONSTRAINT ck_tensor_switch_mode CHECK (mode IN ('advise', 'apply'))
);
CREATE INDEX ix_tensor_switch_job_id_id ON tensor_switch (job_id, id);
CREATE TABLE token (
    id uuid NOT NULL, project_id integer, name text NOT NULL, sha256 bytea NOT NULL,
    begins text NOT NULL, scopes text[] NOT NULL, owner text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), expires_at timestamptz, last_used_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT pk_token PRIMARY KEY (id), CONSTRAINT uq_token_sha256 UNIQUE (sha256)
);
CREATE UNIQUE INDEX uq_token_name ON token (name) WHERE revoked_at IS NULL;
CREATE TABLE unreferenced_object (
    key text NOT NULL, seen_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_unreferenced_object PRIMARY KEY (key)
);
CREATE TABLE weekly_summary (
    id uuid NOT NULL, project_id integer NOT NULL, rule_id uuid NOT NULL, channel_id uuid NOT NULL,
    week date NOT NULL, since timestamptz NOT NULL, until timestamptz NOT NULL, state text NOT NULL,
    attempt integer NOT NULL, next_attempt_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), note jsonb, finished_at timestamptz,
    error_code text, error text,
    CONSTRAINT pk_weekly_summary PRIMARY KEY (id),
    CONSTRAINT uq_weekly_summary_rule_id_channel_id_week UNIQUE (rule_id, channel_id, week),
    CONSTRAINT ck_weekly_summary_state
        CHECK (state IN ('waiting', 'sending', 'delivered', 'failed', 'superseded'))
);
CREATE INDEX ix_weekly_summary_channel_id ON weekly_summary (channel_id);
CREATE INDEX ix_weekly_summary_due ON weekly_summary (next_attempt_at) WHERE state = 'waiting';
CREATE TABLE worker_heartbeat (
    id uuid NOT NULL, host text NOT NULL, pid integer NOT NULL, queues text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(), seen_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_worker_heartbeat PRIMARY KEY (id)
);
"""
# Columns that refer to a row of the same project; the referring rows are moved and deleted with it.
REFERENCES: Final = {
    "alert_incident.id": (
        "alert_assignee.incident_id alert_comment.incident_id alert_event.incident_id "
        "alert_on_host.incident_id alert_on_host.lead_id"
    ),
    "alert_channel.id": "alert_delivery.channel_id weekly_summary.channel_id",
    "alert_group.id": "alert_delivery.group_id alert_incident.group_id",
    "job.id": (
        "alert_group.job_id applied_fix.job_id attempt.job_id hang.job_id hang_upload.job_id "
        "host_reading.job_id host_week.job_id inbox.job_id job_note.job_id pulse_block.job_id "
        "pulse_notice.job_id pulse_span.job_id pulse_state.job_id recording_request.job_id "
        "session.job_id tensor_group.job_id tensor_switch.job_id"
    ),
    "session.id": (
        "applied_fix.session_id host_reading.session_id intake.session_id report.session_id "
        "session_verdict.session_id"
    ),
    "hang.id": "hang_file.hang_id",
    "hang_upload.id": "hang_upload_part.upload_id",
    "intake.session_id": "chunk.session_id inbox.session_id",
    "tensor_group.id": "tensor_plan.group_id tensor_report.group_id",
}
# Tables whose rows refer to no other row of their project.
OF_PROJECT: Final = (
    "action_policy action_switch alert_channel alert_rule blob_object blob_part doomed_blob "
    "gpu_place host_probe host_repair ingest_refusal job machine_action membership plan "
    "project_usage retention saved_view slack_request task_run token"
)
OTHER_REFERENCES: Final = """
ALTER TABLE applied_fix ADD CONSTRAINT fk_applied_fix_project_id_measured_by_session
    FOREIGN KEY (project_id, measured_by) REFERENCES session (project_id, id)
    ON UPDATE CASCADE ON DELETE SET NULL (measured_by);
ALTER TABLE browser_session ADD CONSTRAINT fk_browser_session_person_id_person
    FOREIGN KEY (person_id) REFERENCES person (id) ON DELETE CASCADE;
ALTER TABLE known_browser ADD CONSTRAINT fk_known_browser_person_id_person
    FOREIGN KEY (person_id) REFERENCES person (id) ON DELETE CASCADE;
ALTER TABLE membership ADD CONSTRAINT fk_membership_person_id_person
    FOREIGN KEY (person_id) REFERENCES person (id) ON DELETE CASCADE;
"""
TRIGGERS: Final = """
CREATE FUNCTION audit_entry_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < now() - interval '730 days' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'entries of the audit log stay as they are for two years';
END
$$;
CREATE TRIGGER audit_entry_stays BEFORE UPDATE OR DELETE ON audit_entry
    FOR EACH ROW EXECUTE FUNCTION audit_entry_stays();
CREATE TRIGGER audit_entry_is_not_emptied BEFORE TRUNCATE ON audit_entry
    FOR EACH STATEMENT EXECUTE FUNCTION audit_entry_stays();

-- What readings of hosts add up to by week: Mondays, midnight UTC.
CREATE FUNCTION host_week_of(moment timestamptz) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN date_bin('7 days', moment, timestamptz '2001-01-01 00:00:00+00');
-- One transaction at a time changes the sums of a job: statements after the lock see what the
-- others wrote.
CREATE FUNCTION host_week_lock(job bigint) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('host_week', job))
$$;
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
$$;
-- Where the largest goes the next one is found. A job that goes takes its sums along.
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
$$;
CREATE TRIGGER host_week_grows AFTER INSERT ON host_reading REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION host_week_grows();
CREATE TRIGGER host_week_shrinks AFTER DELETE ON host_reading REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION host_week_shrinks();

-- What lists and sums read of a verdict: they need not read its document, which is stored apart.
-- `SessionVerdict` computes the same.
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
# The default alert rules, which operators may edit and delete.
ROWS: Final = """
INSERT INTO project (name) VALUES ('default');
INSERT INTO project_usage (project_id, hour, hour_sessions, bytes, operations)
    VALUES (1, date_trunc('hour', now()), 0, 0, 0);
INSERT INTO alert_rule (project_id, id, name, document) VALUES
    (1, '5a0c1ea1-0000-4000-8000-000000000001', 'Slow job', '{
        "condition": {"kind": "headline", "at_least": 1.1, "clears_below": 1.05},
        "selector": {"importance": ["normal", "high"]},
        "escalation": {"at_least": 1.5, "gpu_hours_per_hour": 100.0}
    }'),
    (1, '5a0c1ea1-0000-4000-8000-000000000002', 'Regression against the job''s baseline', '{
        "condition": {"kind": "regression", "at_least": 0.05, "clears_below": 0.03},
        "selector": {"importance": ["normal", "high"]}
    }'),
    (1, '5a0c1ea1-0000-4000-8000-000000000003', 'Slow worker, for certain', '{
        "condition": {
            "kind": "cause", "confidence": 0.9, "clears_below": 0.8, "causes": ["slow_worker"]
        },
        "selector": {"importance": ["normal", "high"]},
        "consecutive": 1
    }'),
    (1, '5a0c1ea1-0000-4000-8000-000000000004', 'No data', '{
        "condition": {"kind": "no_data", "minutes": 10, "intervals": 3},
        "selector": {"importance": ["normal", "high"], "except_labels": {"demo": "true"}},
        "consecutive": 1,
        "clear_sessions": 1
    }'),
    (1, '5a0c1ea1-0000-4000-8000-000000000005', 'Low trace quality', '{
        "condition": {"kind": "discrepancy", "at_least": 0.05, "clears_below": 0.05},
        "severity": "info",
        "audience": "owner"
    }');
"""


def upgrade() -> None:
    op.execute(TABLES)
    for key, columns in REFERENCES.items():
        other, of_other = key.split(".")
        for reference in columns.split():
            table, column = reference.split(".")
            op.create_foreign_key(
                f"fk_{table}_project_id_{column}_{other}",
                table,
                other,
                ["project_id", column],
                ["project_id", of_other],
                onupdate="CASCADE",
                ondelete="CASCADE",
            )
    for table in OF_PROJECT.split():
        name = f"fk_{table}_project_id_project"
        op.create_foreign_key(name, table, "project", ["project_id"], ["id"], ondelete="CASCADE")
    for statements in (OTHER_REFERENCES, TRIGGERS, ROWS):
        op.execute(statements)


def downgrade() -> None:
    tables = re.findall(r"CREATE TABLE (\w+)", TABLES)
    op.execute(f"DROP TABLE {', '.join(tables)} CASCADE")
    functions = re.findall(r"CREATE FUNCTION (\w+)", TRIGGERS)
    op.execute(f"DROP FUNCTION {', '.join(functions)} CASCADE")
