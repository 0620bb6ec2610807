"""Retention rules: the oldest data are deleted first, by age and by size; pinned data stay."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlalchemy import func, select, update

from app.access.audit import list_entries
from app.access.models import AuditEntry
from app.access.projects import create_project
from app.errors import ConflictError, NotFoundError
from app.hosts.probes import Measure, ProbedDevice, note_probe, probes_of
from app.incidents.channel_writes import create_channel
from app.incidents.models.tables import AlertDelivery, AlertGroup, DeliveryState
from app.platform.database.task_runs import TaskRun
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.quotas.usage import use_of
from app.retention import rules
from app.retention.export import analyze_again
from app.retention.kinds import KINDS
from app.retention.models import DoomedBlob, Keep, Retention, RetentionRules
from app.retention.rules import keep_to_rules, losses_of, pin_session, rules_of, set_rules, uses_of
from app.sessions.models.tables import Session
from app.sessions.read import heatmap, report_json
from app.sessions.replays import prepared_session, stored_trace
from tests.support.alerting import Alerting
from tests.support.reads import read
from tests.support.sessions import (
    Stored,
    count_blobs,
    session_row,
    small_trace,
    store,
    stored_verdict,
)

if TYPE_CHECKING:
    from app.platform.container import Container


def _analyzed(container: Container, days: float = 0) -> Stored:
    """Return an analyzed session that was received a number of days ago."""
    stored = store(container, small_trace())
    assert execute(container, LeaseKeeper(container), stored.run)
    ago = timedelta(days=days)
    with container.uow() as tx:
        tx.session.execute(
            update(Session).where(Session.id == stored.session).values(received_at=tx.now - ago)
        )
        tx.session.execute(
            update(TaskRun).where(TaskRun.id == stored.run).values(finished_at=tx.now - ago)
        )
    return stored


def _has_trace(container: Container, stored: Stored) -> bool:
    return session_row(container, stored).trace_blob is not None


def _pass(container: Container) -> int:
    """Run a pass, whenever the last one was."""
    with container.everywhere().uow() as tx:
        tx.session.execute(update(Retention).values(looked_at=None))
    return keep_to_rules(container)


def test_without_rules_everything_of_sessions_stays(container: Container) -> None:
    stored = _analyzed(container, days=5000)
    with container.uow() as tx:
        tx.session.execute(update(TaskRun).values(finished_at=tx.now - timedelta(days=1)))
    assert keep_to_rules(container) == 0
    assert _has_trace(container, stored)
    assert read(container, rules_of) == RetentionRules()


def test_old_traces_go_and_their_reports_stay_and_say_so(container: Container) -> None:
    old, new = _analyzed(container, days=31), _analyzed(container, days=29)
    with prepared_session(container, old.session) as ready:
        assert ready.steps.size
    set_rules(container, RetentionRules(traces=Keep(days=30)))
    assert keep_to_rules(container) == 1
    assert read(container, report_json, old.session)
    with pytest.raises(NotFoundError, match="were deleted") as gone:
        read(container, stored_trace, old.session)
    assert gone.value.stable_code == "trace.removed"
    # Also for a session that was prepared in memory a moment ago.
    with pytest.raises(NotFoundError, match="were deleted"):
        prepared_session(container, old.session).__enter__()
    with pytest.raises(ConflictError):
        analyze_again(container, old.session)
    assert len(read(container, stored_trace, new.session).unpack()) == len(small_trace())
    # Only the trace's bytes are deleted: a report has two blobs.
    assert count_blobs(container) == 2 + 3
    assert read(container, use_of, container.project_id).operations == len(small_trace())
    assert _pass(container) == 0


def test_over_the_size_the_oldest_go_and_pinned_ones_stay(container: Container) -> None:
    sessions = [_analyzed(container, days=days) for days in (4, 3, 2, 1)]
    pin_session(container, sessions[0].session, pinned=True)
    one = read(container, uses_of)["traces"].bytes // len(sessions)
    set_rules(container, RetentionRules(traces=Keep(bytes=2 * one + one // 2)))
    assert keep_to_rules(container) == 1
    assert [_has_trace(container, one) for one in sessions] == [True, False, True, True]
    # The size is still exceeded, but the remaining session is pinned.
    assert _pass(container) == 0
    pin_session(container, sessions[0].session, pinned=False)
    assert _pass(container) == 1
    assert read(container, uses_of)["traces"].bytes == 2 * one


def test_the_effect_of_rules_is_counted_before(container: Container) -> None:
    _analyzed(container, days=40)
    pinned = _analyzed(container, days=40)
    pin_session(container, pinned.session, pinned=True)
    _analyzed(container)
    rules = RetentionRules(traces=Keep(days=30), reports=Keep(bytes=0))
    with container.reading() as tx:
        losses = losses_of(tx, rules)
        assert losses_of(tx, RetentionRules()) == {}
    assert losses == {"traces": 1, "reports": 2}
    set_rules(container, rules)
    assert _pass(container) == sum(losses.values())


def test_unfinished_sessions_are_kept(container: Container) -> None:
    stored = store(container, small_trace())
    with container.uow() as tx:
        tx.session.execute(update(Session).values(received_at=tx.now - timedelta(days=99)))
    set_rules(container, RetentionRules(traces=Keep(days=1)))
    assert keep_to_rules(container) == 0
    assert execute(container, LeaseKeeper(container), stored.run)
    assert _pass(container) == 1


def test_heatmaps_go_before_reports(container: Container) -> None:
    stored = _analyzed(container, days=10)
    mean = read(container, heatmap, stored.session)
    set_rules(container, RetentionRules(heatmaps=Keep(days=5)))
    keep_to_rules(container)
    assert read(container, report_json, stored.session)
    # The report contains the mean of the steps, but no single steps.
    np.testing.assert_allclose(read(container, heatmap, stored.session), mean, rtol=1e-5)
    with pytest.raises(NotFoundError) as gone:
        read(container, heatmap, stored.session, 1)
    assert gone.value.stable_code == "report.heatmaps_removed"
    assert count_blobs(container) == 2

    set_rules(container, RetentionRules(reports=Keep(days=5)))
    keep_to_rules(container)
    with pytest.raises(NotFoundError) as gone:
        read(container, report_json, stored.session)
    assert gone.value.stable_code == "report.removed"
    # The values that lists show stay.
    row = session_row(container, stored)
    assert stored_verdict(container, stored) is not None
    assert (row.state, count_blobs(container)) == ("analyzed", 1)

    # A pinned session that is analyzed again keeps its new report.
    pin_session(container, stored.session, pinned=True)
    analyze_again(container, stored.session)
    with container.reading() as tx:
        run = tx.session.execute(select(TaskRun.id).where(TaskRun.state == "queued")).scalar_one()
    assert execute(container, LeaseKeeper(container), run)
    _pass(container)
    assert read(container, report_json, stored.session)
    assert session_row(container, stored).report_removed_at is None


def test_work_that_is_over_goes_by_age(container: Container) -> None:
    _analyzed(container, days=100)
    waiting = store(container, small_trace())
    assert keep_to_rules(container) == 1
    with container.reading() as tx:
        assert tx.session.execute(select(TaskRun.id)).scalars().all() == [waiting.run]


def _told(container: Container, days: float) -> None:
    """Store three delivered messages of one job, a number of days old."""
    Alerting(container).slow()
    channel = create_channel(
        container, name="x", kind="webhook", config={"url": "https://x.example"}, enabled=False
    )
    with container.uow() as tx:
        group = tx.session.execute(select(AlertGroup.id)).scalars().first()
        for number in (91, 92, 93):
            then = tx.now - timedelta(days=days)
            tx.session.add(
                AlertDelivery(
                    id=uuid.uuid4(),
                    group_id=group,
                    channel_id=channel.id,
                    number=number,
                    generation=0,
                    state=DeliveryState.DELIVERED,
                    attempt=1,
                    next_attempt_at=then,
                    created_at=then,
                )
            )


def test_old_deliveries_are_deleted_except_the_last_one(container: Container) -> None:
    _told(container, 31)
    assert keep_to_rules(container) == 2
    with container.reading() as tx:
        assert tx.session.execute(select(AlertDelivery.number)).scalars().all() == [93]


def _probed(container: Container, host: str, days: float) -> None:
    with container.reading() as tx:
        at = tx.now - timedelta(days=days)
    devices = [
        ProbedDevice(str(index), "NVIDIA H100", None, None, {Measure.MATMUL: 600.0})
        for index in range(2)
    ]
    note_probe(container, host, devices, probe_id=uuid.uuid4(), at=at, guessed=False)


def test_old_probes_go_but_the_latest_of_each_host(container: Container) -> None:
    for host, days in (("a", 400), ("a", 200), ("a", 9), ("b", 300), ("b", 200), ("c", 179)):
        _probed(container, host, days)
    assert read(container, use_of, container.project_id).probed_devices == 12
    assert read(container, uses_of)["probes"].count == 6
    with container.reading() as tx:
        assert losses_of(tx, RetentionRules()) == {"probes": 3}
    assert keep_to_rules(container) == 3
    assert [len(read(container, probes_of, host)) for host in "abc"] == [2, 2, 2]
    # The quota has room for other devices again.
    assert read(container, use_of, container.project_id).probed_devices == 6


def test_every_kind_has_a_size_of_its_own(container: Container) -> None:
    _told(container, 1)
    _probed(container, "a", 2)
    _probed(container, "a", 1)
    kept = _analyzed(container)
    pin_session(container, kept.session, pinned=True)
    _analyzed(container, days=1)
    for kind in KINDS:
        before = read(container, uses_of)
        set_rules(container, _checked({kind.name: {"bytes": 0}}))
        keep_to_rules(container)
        after = read(container, uses_of)
        # Pinned data, the last delivery and probe, the log of two years, and other kinds of data
        # stay.
        none = dict.fromkeys(("task_runs", "hangs", "pulse_rows", "pulse_spans"), 0)
        left = {**none, "audit": after["audit"].count}.get(kind.name, 1)
        assert after[kind.name].count == left, kind.name
        for other in KINDS:
            # A deleted report deletes its heatmaps, and every change is logged.
            if other.name not in {kind.name, "heatmaps", "audit"}:
                assert after[other.name].count == before[other.name].count, (kind.name, other.name)
    assert session_row(container, kept).trace_removed_at is None


def test_the_audit_log_stays_for_two_years_whatever_its_size(container: Container) -> None:
    with pytest.raises(ValueError, match="730"):
        _checked({"audit": {"days": 729}})
    set_rules(container, _checked({"audit": {"days": 730, "bytes": 0}}))
    with container.uow() as tx:
        tx.session.add(
            AuditEntry(
                at=tx.now - timedelta(days=800),
                actor_kind="person",
                actor="ada",
                action="created",
                subject="rule x",
                project_id=container.project_id,
            )
        )
    assert _pass(container) == 1
    assert [entry.subject for entry in read(container, list_entries, 9)] == ["retention"]


def _checked(document: dict[str, Any]) -> RetentionRules:
    from pydantic import TypeAdapter  # noqa: PLC0415 - for this test alone

    return TypeAdapter(RetentionRules).validate_python(document)


def test_one_project_s_rules_are_no_other_s(container: Container) -> None:
    other = container.within(create_project(container.everywhere(), "other").id)
    ours, theirs = _analyzed(container, days=9), _analyzed(other, days=9)
    set_rules(other, RetentionRules(traces=Keep(days=1)))
    assert keep_to_rules(container) == 1
    assert _has_trace(container, ours)
    assert not _has_trace(other, theirs)
    uses = read(container, uses_of), read(other, uses_of)
    assert [use["traces"].count for use in uses] == [1, 0]
    assert [use["reports"].count for use in uses] == [1, 1]


def test_a_pass_that_was_cut_off_is_finished_by_the_next(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [_analyzed(container, days=9) for _ in range(3)]
    set_rules(container, RetentionRules(traces=Keep(days=1)))
    for limit in ("ROWS", "KEYS_A_QUERY", "PARTS"):
        monkeypatch.setattr(rules, limit, 1)
    monkeypatch.setattr(rules, "PASS_LIMIT_S", 0.0)
    # With no time for a pass nothing is deleted, and the project's pass does not count as done.
    assert keep_to_rules(container) == 0
    monkeypatch.setattr(rules, "PASS_LIMIT_S", 10.0)
    assert keep_to_rules(container) == 3
    assert not any(_has_trace(container, one) for one in sessions)
    with container.everywhere().reading() as tx:
        assert tx.session.execute(select(func.count()).select_from(DoomedBlob)).scalar() == 0
    # The next pass over the project is minutes later.
    _analyzed(container, days=9)
    assert keep_to_rules(container) == 0
    assert _pass(container) == 1
