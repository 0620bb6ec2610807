"""Silent jobs: when the silence is an incident, and when it is not."""

from __future__ import annotations

from datetime import timedelta

from app.incidents.conditions import DATA_CAME, JOB_FINISHED
from app.incidents.grouping import FINISH_GRACE
from app.incidents.lifecycle import clear
from app.incidents.models.rules import DEFAULT_RULES, DEMO_LABELS, NoData
from tests.unit.incidents.builders import EVERY, START, Job, session, silent_rule, told


def test_no_data_fires_after_three_usual_intervals_and_ends_with_the_next_session() -> None:
    job = Job(silent_rule())
    job.come(*(session(n) for n in range(1, 6)))
    last = job.history[-1].received_at
    assert told(job.look(last + 2.9 * EVERY)) == []
    assert told(job.look(last + 3 * EVERY)) == ["fired"]
    assert told(job.look(last + 4 * EVERY)) == []
    changes = job.come(session(12))
    assert told(changes) == ["resolved"]
    assert changes[-1].incident.why_resolved == DATA_CAME


def test_a_job_without_a_usual_interval_is_not_missed_by_intervals_but_by_minutes() -> None:
    job = Job(silent_rule())
    job.come(session(1))
    assert job.look(START + timedelta(days=9)) == []
    job.rules = [silent_rule(condition=NoData(minutes=45))]
    assert told(job.look(START + 4 * EVERY)) == ["fired"]


def test_of_minutes_and_intervals_the_longer_counts() -> None:
    job = Job(silent_rule(condition=NoData(minutes=200, intervals=3)))
    job.come(*(session(n) for n in range(1, 6)))
    last = job.history[-1].received_at
    assert told(job.look(last + timedelta(minutes=199))) == []
    assert told(job.look(last + timedelta(minutes=200))) == ["fired"]


def test_a_finished_job_that_was_resolved_is_not_missed_again() -> None:
    job = Job(silent_rule())
    job.come(*(session(n) for n in range(1, 6)))
    now = job.history[-1].received_at + 5 * EVERY
    job.look(now)
    job.update(clear(job.only(), now, "finished", by="ann"))
    job.since[silent_rule().id] = now
    assert job.look(now + 20 * EVERY) == []
    job.come(session(40), session(41), session(42), session(43))
    assert told(job.look(job.history[-1].received_at + 40 * EVERY)) == ["fired"]


def test_the_silence_of_a_job_that_said_that_it_ended_is_no_incident() -> None:
    job = Job(silent_rule())
    job.come(*(session(n) for n in range(1, 6)))
    last = job.history[-1].received_at
    assert told(job.look(last + 5 * EVERY)) == ["fired"]
    job.finished_at = last
    [ended] = job.look(last + 6 * EVERY)
    assert (ended.event, ended.incident.why_resolved) == ("resolved", JOB_FINISHED)
    assert job.look(last + 60 * EVERY) == []
    # The last session may arrive a little after the end of the job; another start revokes the end.
    job.finished_at = last - FINISH_GRACE
    assert job.look(last + 70 * EVERY) == []
    job.come(*(session(n) for n in range(80, 84)))
    assert told(job.look(job.history[-1].received_at + 40 * EVERY)) == ["fired"]


def test_the_demo_is_watched_but_not_missed() -> None:
    for rule in DEFAULT_RULES:
        misses = isinstance(rule.condition, NoData)
        assert rule.selector.selects("dense-13b", DEMO_LABELS) is not misses
        assert rule.selector.selects("dense-13b", {})
