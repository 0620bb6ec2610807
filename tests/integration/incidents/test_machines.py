"""One machine, one incident: incidents of several jobs on one host are sent once."""

from __future__ import annotations

import re
import threading
from datetime import timedelta

from sqlalchemy import delete, select, update

from app.access.moves import move_job
from app.access.projects import create_project
from app.analysis.report.session_verdict import SuspectedCause
from app.incidents.evaluate import (
    acknowledge_incident,
    reopen_incident,
    reopening,
    resolve_incident,
    resolving,
    silencing,
    unacknowledging,
)
from app.incidents.machines import members_ended_with
from app.incidents.models.tables import AlertGroup, AlertOnHost, IncidentState
from app.incidents.triage import order_many
from app.incidents.views import incidents
from tests.support.alerting import Alerting
from tests.support.reads import read
from tests.support.receiver import Receiver

MINUTE = timedelta(minutes=1)


def _leads(alerting: Alerting) -> list[AlertOnHost]:
    with alerting.container.uow() as tx:
        return list(
            tx.session.execute(
                select(AlertOnHost).where(AlertOnHost.incident_id == AlertOnHost.lead_id)
            ).scalars()
        )


def _placed(alerting: Alerting) -> int:
    with alerting.container.uow() as tx:
        return len(tx.session.execute(select(AlertOnHost.incident_id)).all())


def _titles(receiver: Receiver) -> list[str]:
    return [got.json["status"] for got in receiver.got]


def test_pods_of_two_jobs_with_one_name_are_one_machine_only_by_a_gpu(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    for job in ("a", "b"):
        alerting.guessed(job, "worker-0")
    assert _placed(alerting) == 0
    for _ in "ab":
        alerting.pass_and_work(MINUTE)
    assert len(receiver.got) == 2
    assert "worker-0 (guessed)" in receiver.got[0].json["alerts"][0]["annotations"]["summary"]
    for job in ("c", "d"):
        alerting.guessed(job, "worker-1", "GPU-5a3f")
    alerting.pass_and_work(MINUTE)
    assert len(receiver.got) == 3


def test_jobs_on_one_machine_are_one_incident_and_one_message(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    for job in ("a", "b", "c"):
        alerting.slow(job, host="node-7")
    alerting.pass_and_work(MINUTE)
    [got] = receiver.got
    [alert] = got.json["alerts"]
    assert alert["labels"]["job"] == "a"
    assert "b 1.30×, c 1.30×" in alert["annotations"]["description"]
    found = read(alerting.container, incidents)
    [line] = found.present
    assert (line.job, [one.job for one in line.inside]) == ("a", ["b", "c"])


def test_it_lasts_until_every_job_inside_is_well(alerting: Alerting, receiver: Receiver) -> None:
    alerting.channel(receiver)
    for job in ("a", "b"):
        alerting.slow(job, host="node-7")
    alerting.pass_and_work(MINUTE)
    alerting.fast("a")
    alerting.pass_and_work(10 * MINUTE)
    assert _titles(receiver) == ["firing"]
    alerting.fast("b")
    alerting.pass_and_work(10 * MINUTE)
    alerting.pass_and_work(10 * MINUTE)
    assert _titles(receiver) == ["firing", "resolved"]
    assert {found.state for found in alerting.incidents()} == {IncidentState.RESOLVED}
    assert all(lead.over_at is not None for lead in _leads(alerting))


def test_another_host_is_another_incident(alerting: Alerting, receiver: Receiver) -> None:
    alerting.channel(receiver)
    other = SuspectedCause("slow_worker", ("node-8",), confidence=0.95)
    nowhere = SuspectedCause("slow_worker", ("worker (0, 1)",), confidence=0.95)
    for job, cause in (("a", None), ("b", other), ("c", nowhere), ("d", nowhere)):
        for _ in range(2):
            alerting.session(1.3, *([cause] if cause else []), job=job)
    alerting.pass_and_work(MINUTE)
    assert len(alerting.incidents()) == 4
    assert len(_leads(alerting)) == 2


def test_a_fault_of_the_job_itself_is_no_machine_s(alerting: Alerting, receiver: Receiver) -> None:
    alerting.channel(receiver)
    # Stored by an earlier version, which assigned this cause to the host too.
    own = SuspectedCause("memory_fragmentation", ("node-7",), confidence=0.95)
    for job in ("a", "b"):
        for _ in range(2):
            alerting.session(1.3, own, job=job)
    alerting.slow("c", host="node-7")
    alerting.pass_and_work(MINUTE)
    assert len(receiver.got) == 3
    assert [lead.host for lead in _leads(alerting)] == ["node-7"]
    assert _placed(alerting) == 1
    found = read(alerting.container, incidents)
    assert {line.job: len(line.inside) for line in found.present} == {"a": 0, "b": 0, "c": 0}


def test_two_evaluations_at_once_make_one_lead(alerting: Alerting) -> None:
    jobs = [f"job-{number}" for number in range(8)]
    for job in jobs:
        alerting.session(job=job)
    start = threading.Barrier(len(jobs))
    faults: list[BaseException] = []

    def evaluate(job: str) -> None:
        start.wait()
        try:
            alerting.session(job=job)
        except BaseException as error:  # noqa: BLE001 - shown below
            faults.append(error)

    threads = [threading.Thread(target=evaluate, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    [lead] = _leads(alerting)
    assert lead.over_at is None
    assert _placed(alerting) == len(jobs)


def test_the_end_of_a_lead_and_a_job_that_joins_at_once(alerting: Alerting) -> None:
    for number in range(6):
        first, second = f"a{number}", f"b{number}"
        alerting.slow(first, host="node-7")
        alerting.session(1.0, job=first)
        alerting.session(job=second)
        start = threading.Barrier(2)

        def run(job: str, slowdown: float, start: threading.Barrier = start) -> None:
            start.wait()
            alerting.session(slowdown, job=job)

        threads = [
            threading.Thread(target=run, args=(first, 1.0)),
            threading.Thread(target=run, args=(second, 1.3)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        alerting.work()
        open_ = [one for one in alerting.incidents() if one.state is not IncidentState.RESOLVED]
        leading = [lead.incident_id for lead in _leads(alerting) if lead.over_at is None]
        assert len(leading) == 1, "every open incident has one that speaks for it"
        assert {one.id for one in open_} >= set(leading)
        alerting.fast(second)
        alerting.work()
        alerting.work()
        assert not [one for one in alerting.incidents() if one.state is not IncidentState.RESOLVED]


def test_the_next_look_continues_after_a_killed_worker(
    alerting: Alerting, receiver: Receiver
) -> None:
    """The evaluation stores the end of an incident; the sweeper derives the rest from it."""
    alerting.channel(receiver)
    for job in ("a", "b"):
        alerting.slow(job, host="node-7")
    alerting.fast("a")
    alerting.fast("b")
    # The state after a kill between the end of b's incident and the check of the joined one.
    [lead] = [one for one in _leads(alerting) if one.over_at is None]
    assert lead.stirred_at is not None
    alerting.work()
    assert {found.state for found in alerting.incidents()} == {IncidentState.RESOLVED}


def test_without_its_row_an_incident_finds_its_lead_again(alerting: Alerting) -> None:
    for job in ("a", "b"):
        alerting.slow(job, host="node-7")
    with alerting.container.uow() as tx:
        tx.session.execute(delete(AlertOnHost))
        tx.session.execute(update(AlertGroup).values(look_at=tx.now))
    alerting.work()
    assert len(_leads(alerting)) == 1
    assert _placed(alerting) == 2


def test_an_order_is_for_all_inside(alerting: Alerting, receiver: Receiver) -> None:
    alerting.channel(receiver)
    for job in ("a", "b"):
        alerting.slow(job, host="node-7")
    lead, inside = alerting.incidents()
    acknowledge_incident(alerting.container, lead.id, by="ann")
    assert {found.acknowledged_by for found in alerting.incidents()} == {"ann"}
    with alerting.container.uow() as tx:
        until = tx.now + timedelta(hours=1)
    ann = alerting.container.principal.called("ann")
    order_many(alerting.container, [lead.id], silencing(ann, until, "drained"), ann, "drained")
    assert {found.state for found in alerting.incidents()} == {IncidentState.SILENCED}
    resolve_incident(alerting.container, lead.id, by="ann")
    assert {found.state for found in alerting.incidents()} == {IncidentState.RESOLVED}
    assert inside.id != lead.id


def test_a_reopened_machine_leads_its_resolved_incidents_again(alerting: Alerting) -> None:
    for job in ("a", "b"):
        alerting.slow(job, host="node-7")
    lead, inside = alerting.incidents()
    acknowledge_incident(alerting.container, inside.id, by="ann")
    resolve_incident(alerting.container, lead.id, by="ann")
    reopen_incident(alerting.container, lead.id, by="ann")
    assert [found.state for found in alerting.incidents()] == ["firing", "acknowledged"]
    assert [(one.incident_id, one.over_at) for one in _leads(alerting)] == [(lead.id, None)]
    assert _placed(alerting) == 2

    ann = alerting.container.principal.called("ann")
    done = order_many(alerting.container, {lead.id}, resolving(ann, None), ann)
    assert set(done.changed) == {lead.id, inside.id}
    again = order_many(
        alerting.container, set(done.changed), reopening, ann, inside=members_ended_with
    )
    assert set(again.changed) == {lead.id, inside.id}
    assert [one.incident_id for one in _leads(alerting)] == [lead.id]
    order_many(alerting.container, {inside.id}, unacknowledging, ann)
    assert {found.state for found in alerting.incidents()} == {IncidentState.FIRING}


def test_jobs_that_go_silent_together_are_one_incident_and_one_message(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    for number in range(20):
        for _ in range(4):
            alerting.session(1.0, job=f"job-{number}")
    alerting.slow("slow", host="node-7")
    alerting.pass_and_work(MINUTE)
    assert [got.json["groupLabels"]["job"] for got in receiver.got] == ["slow"]
    for number in range(20):
        alerting.silent(f"job-{number}", timedelta(hours=3))
    alerting.pass_and_work(MINUTE)
    fire = [found for found in alerting.incidents() if found.state == "firing"]
    assert sum(found.cause == "no_data" for found in fire) == 20
    # The joined incident of silent jobs does not hide the slow job.
    assert sum(found.cause == "slow_worker" for found in fire) == 1
    told = receiver.got[1:]
    assert len(told) == 1
    title = told[0].json["commonAnnotations"]["summary"]
    assert re.fullmatch(
        r"20 jobs silent since \d\d:\d\d UTC: the network or the collector\?", title
    ), title

    # The joined incident stays open while a job is silent; the last returning job ends it.
    for number in range(20):
        assert {one.over_at for one in _leads(alerting)} == {None}
        alerting.session(1.0, job=f"job-{number}")
    alerting.pass_and_work(10 * MINUTE)
    assert {found.state for found in alerting.incidents() if found.cause == "no_data"} == {
        "resolved"
    }


def test_a_job_that_gets_worse_within_a_machine_incident_makes_a_message(
    alerting: Alerting, receiver: Receiver
) -> None:
    alerting.channel(receiver)
    for job in ("a", "b"):
        alerting.slow(job, host="node-7")
    alerting.pass_and_work(MINUTE)
    lead, _ = alerting.incidents()
    acknowledge_incident(alerting.container, lead.id, by="ann")
    alerting.session(1.9, job="b")
    alerting.pass_and_work(10 * MINUTE)
    alerting.pass_and_work(10 * MINUTE)
    assert [got.json["alerts"][0]["labels"]["severity"] for got in receiver.got] == [
        "warning",
        "critical",
    ]


def test_a_silent_job_does_not_hide_the_machine_of_others(alerting: Alerting) -> None:
    for job in ("a", "b"):
        for _ in range(4):
            alerting.slow(job, host="node-7")
    alerting.silent("a", timedelta(hours=3))
    found = read(alerting.container, incidents)
    assert sorted(row.incident.where for row in found.present) == ["", "node-7"]


def test_a_job_that_leaves_the_project_leaves_the_others_one_lead(alerting: Alerting) -> None:
    for job in ("a", "b", "c"):
        alerting.slow(job, host="node-7")
    create_project(alerting.container.everywhere(), "other")
    move_job(alerting.container, "a", to="other")
    alerting.work()
    leads = [lead for lead in _leads(alerting) if lead.over_at is None]
    assert len(leads) == 1
    assert _placed(alerting) == 2
