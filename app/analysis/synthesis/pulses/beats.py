"""Beats of a synthetic job, one that hangs, and one whose process is gone."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.pulse.columns import Int64, Pulses, joined
from app.analysis.pulse.notices import NoticeKind
from app.analysis.synthesis.pulses.job import PulseJob, PulseTruth

BEAT_NS: Final = 5_000_000_000
PHASES: Final = (
    *("forward-compute", "dp-all-reduce", "data"),
    *("checkpoint", "evaluation", "compile", "finished"),
)
_PHASE: Final = {name: number for number, name in enumerate(PHASES)}


def _beats(  # noqa: PLR0913 - a column each
    job: PulseJob, rank: int, times_ns: Int64, *, steps: Int64, phases: list[str], since_ns: Int64
) -> Pulses:
    """Return beats of a rank, a row for each element of the arrays."""
    count = len(times_ns)
    ranks = np.full(count, rank)
    zeros = np.zeros(count, np.int64)
    return Pulses(
        attempt=np.full(count, job.attempt),
        step=np.asarray(steps, np.int64),
        rank=ranks,
        dp_rank=ranks % job.dials.dp,
        pp_rank=ranks // job.dials.dp,
        time_ns=np.asarray(times_ns, np.int64),
        step_ns=zeros,
        compute_ns=zeros,
        wait_ns=zeros,
        data_ns=zeros,
        optimizer_ns=zeros,
        gc_ns=zeros,
        tokens=zeros,
        phase=np.array([_PHASE[name] for name in phases], np.int64),
        since_ns=np.asarray(since_ns, np.int64),
        phases=PHASES,
    )


def with_beats(job: PulseJob, rng: np.random.Generator, gap_phase: str = "evaluation") -> Pulses:
    """Return the rows of a job together with its beats; in gaps they say `gap_phase`."""
    rows = job.rows()
    ends = job.start_ns + np.cumsum(job.step_ns + job.gap)
    begins = np.append(job.start_ns, ends[:-1])
    parts = [rows]
    for rank in range(job.dials.world):
        first = job.start_ns + int(rng.integers(BEAT_NS))
        times = np.arange(first, int(ends[-1]), BEAT_NS)
        step = np.searchsorted(ends, times, side="right")
        inside = times - begins[step]
        in_gap = inside < job.gap[step]
        waits = inside > job.gap[step] + job.computing[step, rank]
        phases = [
            gap_phase if gap else "dp-all-reduce" if wait else "forward-compute"
            for gap, wait in zip(in_gap, waits, strict=True)
        ]
        since = begins[step] + np.where(waits, job.gap[step] + job.computing[step, rank], 0)
        parts.append(
            _beats(job, rank, times, steps=job.first_step + step, phases=phases, since_ns=since)
        )
    return by_time(joined(parts))


def by_time(rows: Pulses) -> Pulses:
    """Return rows in the order of their times."""
    return rows.take(np.argsort(rows.time_ns, kind="stable"))


def hanging(
    job: PulseJob, rng: np.random.Generator, *, seconds: float, gone: bool
) -> tuple[Pulses, PulseTruth]:
    """Return a job in which one rank stops in its last step, or its process is gone.

    The others wait for it in a collective, and beat on for some seconds.
    """
    rows = with_beats(job, rng)
    culprit = int(rng.integers(job.dials.world))
    last = int(rows.time_ns.max())
    step = job.first_step + job.dials.steps
    parts = [rows]
    for rank in range(job.dials.world):
        own = rows.take(rows.rank == rank)
        heard = int(own.time_ns[own.phase >= 0][-1]) if (own.phase >= 0).any() else last
        times = np.arange(heard + BEAT_NS, last + int(seconds * 1e9), BEAT_NS, dtype=np.int64)
        if rank == culprit and gone:
            times = times[:0]
        phase = "forward-compute" if rank == culprit else "dp-all-reduce"
        since = last + (1e6 if rank == culprit else job.computing[-1, rank])
        count = len(times)
        parts.append(
            _beats(
                job,
                rank,
                times,
                steps=np.full(count, step),
                phases=[phase] * count,
                since_ns=np.full(count, int(since)),
            )
        )
    kind = NoticeKind.SILENT if gone else NoticeKind.HANG
    return by_time(joined(parts)), PulseTruth(kind, (culprit,), step, None, 1.0)
