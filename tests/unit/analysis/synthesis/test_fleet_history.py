from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Final

import pytest

from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.build import analyze
from app.analysis.synthesis.fleet_history import (
    CLUSTER_HOSTS,
    EVERY_H,
    GPUS_PER_HOST,
    HOURS,
    SITES,
    PlannedSession,
    Run,
    host_name,
    runs,
)
from app.analysis.synthesis.scenarios import SCENARIOS

# The layers of the job with uneven stages after the new division.
DIVIDED_LAYERS: Final = (18, 17, 17, 8)
HOUR_NS: Final = 3_600_000_000_000


def held(run: Run) -> list[tuple[float, float, frozenset[str]]]:
    """Return a run's hosts, each with its times on the run, in hours before the end."""
    ends = [phase.from_h for phase in run.phases[1:]] + [run.to_h]
    return [
        (phase.from_h, end_h, frozenset(PlannedSession(run, phase, end_h, 0).hosts))
        for phase, end_h in zip(run.phases, ends, strict=True)
    ]


def test_a_host_is_in_one_job_at_a_time() -> None:
    since: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for run in runs():
        for from_h, to_h, hosts in held(run):
            for host in hosts:
                since[host].append((from_h, to_h, run.name))
    for host, times in since.items():
        in_order = sorted(times, reverse=True)
        for (_, end_h, job), (begin_h, _, other) in itertools.pairwise(in_order):
            assert begin_h <= end_h, f"{host} is in {job} and in {other}"


def test_jobs_that_run_at_the_same_time_fit_the_cluster() -> None:
    names = {host_name(number) for number in range(1, CLUSTER_HOSTS + 1)}
    for hour in range(int(HOURS) + 1):
        here = [
            (run, hosts)
            for run in runs()
            for from_h, to_h, hosts in held(run)
            if from_h >= hour > to_h
        ]
        gpus = sum(run.phases[0].job.sizes.world for run, _ in here)
        of_hosts = [host for _, hosts in here for host in hosts]
        assert set(of_hosts) <= names
        assert len(set(of_hosts)) * GPUS_PER_HOST == gpus


def test_jobs_of_one_site_share_no_host_with_jobs_of_the_other() -> None:
    at: dict[str, set[str]] = {site: set() for site in SITES}
    for run in runs():
        at[run.site] |= {host for _, _, hosts in held(run) for host in hosts}
    assert not set.intersection(*at.values())


def test_every_cause_is_there_at_the_end_or_in_a_job_that_ended() -> None:
    shown = Counter(injection.cause for run in runs() for injection in run.phases[-1].injections)
    wanted = {
        injection.cause for scenario in SCENARIOS.values() for injection in scenario.faults(4)
    }
    assert wanted <= set(shown)
    assert {scenario.job.name for scenario in SCENARIOS.values()} <= {run.name for run in runs()}


def test_sessions_come_at_equal_distances_within_their_run() -> None:
    for run in runs():
        hours = [session.at_h for session in run.sessions()]
        assert run.from_h >= hours[0] > hours[-1] > run.to_h
        assert all(
            before - after == pytest.approx(EVERY_H) for before, after in itertools.pairwise(hours)
        )


def test_a_session_is_of_its_time_and_its_hosts() -> None:
    run = next(run for run in runs() if run.name == "long-context-128k")
    first, *_, last = run.sessions()
    traces = [one.synthesize(7 * HOUR_NS, {"team": "a"}) for one in (first, last)]
    for trace in traces:
        assert int((trace.start_ns + trace.duration_ns).max()) == 7 * HOUR_NS
        assert set(trace.meta.hosts.values()) == set(first.hosts)
        assert trace.meta.labels["team"] == "a"
    assert int(traces[0].step.max()) < int(traces[1].step.min())
    again = last.synthesize(7 * HOUR_NS, {"team": "a"})
    assert (again.start_ns == traces[1].start_ns).all()


def test_lengths_are_those_of_the_steps_that_were_trained_since_the_start() -> None:
    run = next(run for run in runs() if run.name == "long-context-32k")
    *_, last = run.sessions()
    trace = last.synthesize(7 * HOUR_NS, {})
    assert set(map(int, trace.meta.extra["sequence_lengths"])) == set(trace.step.tolist())


@pytest.mark.slow
def test_the_analysis_finds_what_the_history_injects() -> None:
    """The first session of each phase has the phase's cause."""
    for run in runs():
        previous = None
        for session in run.sessions():
            if session.phase is previous:
                continue
            previous = session.phase
            report = analyze(session.synthesize(7 * HOUR_NS, {})).report
            found = {cause.cause for cause in report.causes}
            if not session.phase.injections or session.phase.job.layers == DIVIDED_LAYERS:
                assert report.slowdown < STRAGGLING, (run.name, session.at_h)
            else:
                wanted = {injection.cause for injection in session.phase.injections}
                assert wanted <= found, (run.name, session.at_h)
