"""Metrics of jobs, from their pulse: of the largest jobs and of few ranks, so that they are few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from prometheus_client.core import Metric

    from app.services.pulse.running import RunningJob
    from app.services.sessions.chunks.inbox import Waiting

_JOB = ("project", "job")


def pulse_metrics(running: Sequence[RunningJob], waits: Waiting, now: datetime) -> Iterator[Metric]:
    """Yield the metrics of jobs in their last whole minute, and of pulses that wait."""
    bodies = GaugeMetricFamily("paceline_pulse_waiting", "Bodies of pulses that wait.")
    bodies.add_metric((), waits.bodies)
    yield bodies
    age = GaugeMetricFamily(
        "paceline_pulse_oldest_seconds", "Age of the oldest pulse that waits; 0 without one."
    )
    since = 0.0 if waits.oldest_at is None else (now - waits.oldest_at).total_seconds()
    age.add_metric((), max(since, 0.0))
    yield age
    step = GaugeMetricFamily(
        "paceline_job_step_seconds", "Median step time of the last minute.", labels=_JOB
    )
    tokens = GaugeMetricFamily(
        "paceline_job_tokens_per_second", "Tokens a second of the last minute.", labels=_JOB
    )
    lost = CounterMetricFamily(
        "paceline_job_gpu_hours_lost",
        "GPU-hours in which ranks waited for the one that computes longest against its peers.",
        labels=_JOB,
    )
    ratio = GaugeMetricFamily(
        "paceline_rank_compute_ratio",
        "Computing of the slowest ranks of the last minute against the median of their peers.",
        labels=(*_JOB, "node", "gpu"),
    )
    for one in running:
        labels = one.project, one.job
        step.add_metric(labels, one.step_s)
        if one.tokens_per_s is not None:
            tokens.add_metric(labels, one.tokens_per_s)
        lost.add_metric(labels, one.lost_gpu_hours)
        for slow in one.slowest:
            node = slow.host or f"rank-{slow.rank}"
            ratio.add_metric((*labels, node, str(slow.gpu)), slow.ratio)
    yield from (step, tokens, lost, ratio)
