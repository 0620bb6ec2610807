"""Readings of hosts in reports: slow hosts, their cost, and hosts that only wait for others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.locations import Where
from app.hosts.readings import readings_of
from tests.support import reports


def test_every_host_has_a_reading_and_only_the_slow_worker_s_is_slow() -> None:
    report = reports.slow_worker()
    found = {reading.host: reading for reading in readings_of(report)}
    slow = report.host_of((1, 2))
    assert slow is not None
    assert set(found) == set(report.hosts.values())
    assert found[slow].cause == "slow_worker"
    assert found[slow].slowdown == pytest.approx(report.by_worker.exact[1][2])
    assert found[slow].computing == pytest.approx(2.0, abs=0.1)
    assert [host for host, reading in found.items() if reading.cause] == [slow]
    assert sum(reading.workers for reading in found.values()) == 12
    assert sum(reading.ranks for reading in found.values()) == len(report.hosts)


def test_the_cost_of_a_host_is_its_cause_s_part_of_the_shown_loss() -> None:
    report = reports.slow_worker()
    cost = sum(reading.lost_each_hour for reading in readings_of(report))
    share = sum(c.contribution or 0.0 for c in report.causes if c.cause == "slow_worker")
    assert cost == pytest.approx(report.lost_gpu_hours_per_hour * share)
    assert 0 < cost <= report.lost_gpu_hours_per_hour


def test_the_gpu_at_fault_is_named_where_gpus_are_known() -> None:
    report = reports.slow_worker()
    at_fault = report.workers.rank[1][2]
    gpus = {rank: str(rank % 2) for rank in report.hosts}
    alone = reports.changed(report, gpus=gpus, sizes__tp=1, sizes__cp=1)
    found = {r.host: r for r in readings_of(alone)}
    reading = found[report.hosts[at_fault]]
    assert [gpu.gpu for gpu in reading.gpus if gpu.slow] == [gpus[at_fault]]


def test_of_a_worker_of_several_gpus_the_traced_one_is_not_blamed() -> None:
    report = reports.slow_worker()
    gpus = {rank: str(rank % 2) for rank in report.hosts}
    found = readings_of(reports.changed(report, gpus=gpus, sizes__tp=8))
    assert any(reading.cause for reading in found)
    assert [reading.gpus for reading in found] == [()] * len(found)


def test_a_cause_on_most_hosts_of_a_job_belongs_to_no_host() -> None:
    report = reports.slow_worker()
    cause = report.causes[0]
    everybody = tuple((dp, pp) for dp in range(3) for pp in range(4))
    widespread = replace(cause, where=replace(cause.where, workers=everybody))
    found = readings_of(reports.changed(report, causes=(widespread,)))
    assert found
    assert not [reading for reading in found if reading.cause or reading.lost_each_hour]


def test_a_cause_that_is_the_job_s_own_is_no_host_s() -> None:
    report = reports.slow_worker()
    own = replace(report.causes[0], cause="memory_fragmentation")
    found = readings_of(reports.changed(report, causes=(own,)))
    assert found
    assert not [reading for reading in found if reading.cause or reading.lost_each_hour]
    named = {reading.host: reading.other_cause for reading in found if reading.other_cause}
    assert named == {report.host_of((1, 2)): "memory_fragmentation"}


def test_a_heavy_stage_makes_no_host_slow() -> None:
    report = reports.scenario("stage-imbalance")
    assert max(reading.slowdown for reading in readings_of(report)) > 1.1
    assert not [reading for reading in readings_of(report) if reading.cause]


def test_healthy_hosts_cost_nothing() -> None:
    assert {reading.lost_each_hour for reading in readings_of(reports.healthy())} == {0.0}


def test_without_a_verdict_only_hosts_that_a_cause_blames_are_read() -> None:
    report = reports.distrusted()
    assert readings_of(report) == ()
    blamed = replace(report.causes[0], cause="host_overhead", where=Where(workers=((14, 0),)))
    [found] = readings_of(reports.changed(report, causes=(blamed,)))
    assert (found.host, found.cause) == (report.host_of((14, 0)), "host_overhead")
    assert report.known_waste is not None
    assert found.lost_each_hour == pytest.approx(report.sizes.world * report.known_waste)


def test_there_is_nothing_without_a_cause_or_without_names_of_hosts() -> None:
    assert readings_of(reports.changed(reports.distrusted(), causes=())) == ()
    assert readings_of(reports.changed(reports.slow_worker(), hosts={})) == ()
