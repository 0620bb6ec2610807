"""Random pulses: jobs with faults, harmless events, heartbeats and hangs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.pulse.columns import (
    Pulses,
    joined,
)
from app.analysis.pulse.notices import NoticeKind
from app.analysis.quantities import IntArray
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob, PulseTruth

# Heartbeats: interval between the beats of a rank, and names of operations.
BEAT_NS: Final = 5_000_000_000
PHASES: Final = (
    *("forward-compute", "dp-all-reduce", "data"),
    *("checkpoint", "evaluation", "compile", "finished"),
)
_PHASE: Final = {name: number for number, name in enumerate(PHASES)}


def beats(  # noqa: PLR0913 - a column each
    job: PulseJob,
    rank: int,
    times_ns: IntArray,
    *,
    steps: IntArray,
    phases: list[str],
    since_ns: IntArray,
) -> Pulses:
    """Return the beats of a rank, one row for each element of the arrays."""
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
    """Return the rows and beats of a job; `gap_phase` is the operation between steps."""
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
            beats(job, rank, times, steps=job.first_step + step, phases=phases, since_ns=since)
        )
    return by_time(joined(parts))


def by_time(rows: Pulses) -> Pulses:
    """Return the rows sorted by time."""
    return rows.take(np.argsort(rows.time_ns, kind="stable"))


def hanging(
    job: PulseJob, rng: np.random.Generator, *, seconds: float, gone: bool
) -> tuple[Pulses, PulseTruth]:
    """Return a job in which one rank stops in its last step, or its process ends.

    The other ranks wait for it in a collective, and send heartbeats for some seconds.
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
            beats(
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


# A function that adds an event to a job in place; detection must not report the event.
Event = Callable[[PulseJob, np.random.Generator], None]


def compile_first(job: PulseJob, rng: np.random.Generator) -> None:
    """Lengthen the first steps by compilation, on one random rank for longer."""
    job.computing[0] *= rng.uniform(5, 30)
    job.computing[1:3] *= rng.uniform(1.2, 2)
    job.computing[: int(rng.integers(3, 8)), rng.integers(job.dials.world)] *= 3


def checkpoints(job: PulseJob, rng: np.random.Generator) -> None:
    """Add checkpoints at regular steps, on rank 0 or on all ranks."""
    every = int(rng.integers(40, 200))
    ranks = slice(0, 1) if rng.random() < 0.5 else slice(None)  # noqa: PLR2004
    job.saving[every::every, ranks] += job.dials.step_s * 1e9 * rng.uniform(0.5, 8)


def evaluations(job: PulseJob, rng: np.random.Generator) -> None:
    """Add evaluations between steps."""
    every = int(rng.integers(60, 250))
    job.gap[every::every] += job.dials.step_s * 1e9 * rng.uniform(5, 60)


def loader_bursts(job: PulseJob, rng: np.random.Generator) -> None:
    """Add waiting for data on all ranks: for a few steps at random, or every 32 steps."""
    longer = job.dials.step_s * 1e9 * rng.uniform(0.2, 2)
    if rng.random() < 0.5:  # noqa: PLR2004
        job.data[31::32] += longer
        return
    for begin in rng.integers(0, job.dials.steps, max(1, job.dials.steps // 400)):
        job.data[begin : begin + int(rng.integers(1, 10))] += longer


def hiccups(job: PulseJob, rng: np.random.Generator) -> None:
    """Lengthen random single steps of single ranks."""
    hit = rng.random(job.computing.shape) < 10 ** rng.uniform(-4, -2)
    job.computing[hit] *= rng.uniform(1.1, 3, int(hit.sum()))


def curriculum(job: PulseJob, rng: np.random.Generator) -> None:
    """Let sequences become longer, gradually or at once."""
    steps, growth = job.dials.steps, rng.uniform(1.2, 2)
    factor = (
        np.linspace(1, growth, steps)
        if rng.random() < 0.5  # noqa: PLR2004
        else np.where(np.arange(steps) < steps * rng.uniform(0.3, 0.8), 1, growth)
    )
    job.lengthen(factor[:, None])


def collections(job: PulseJob, rng: np.random.Generator) -> None:
    """Add regular garbage collections, at the same steps on all ranks or at steps of each rank."""
    every = int(rng.integers(10, 60))
    steps = np.arange(job.dials.steps)[:, None]
    at_once = rng.random() < 0.5  # noqa: PLR2004
    phase = 0 if at_once else rng.integers(0, every, job.dials.world)
    hit = np.broadcast_to((steps + phase) % every == 0, job.collecting.shape)
    job.collecting[hit] += job.dials.step_s * 1e9 * rng.uniform(0.05, 0.3)


def missing_host(job: PulseJob, rng: np.random.Generator) -> None:
    """Drop the rows of one host for a while, and random single rows."""
    each = min(job.dials.host_ranks, job.dials.world)
    if each == job.dials.world:
        each = 1
    first = each * int(rng.integers(job.dials.world // each))
    begin = int(rng.integers(job.dials.steps))
    job.missing[begin : begin + int(rng.integers(20, 120)), first : first + each] = True
    job.missing |= rng.random(job.missing.shape) < 10 ** rng.uniform(-5, -3)


EVENTS: Final[Mapping[str, Event]] = {
    "compile": compile_first,
    "checkpoints": checkpoints,
    "evaluations": evaluations,
    "loader bursts": loader_bursts,
    "hiccups": hiccups,
    "curriculum": curriculum,
    "collections": collections,
    "missing host": missing_host,
}


# A function that adds a fault to a job in place, from a step on and with a factor; it returns the
# truth about the fault.
Fault = Callable[[PulseJob, np.random.Generator, int, float], PulseTruth]


def _end(job: PulseJob, rng: np.random.Generator, begin: int) -> int | None:
    """Return the step at which a fault ends; None, for half of the faults, if it lasts."""
    left = job.dials.steps - begin
    return None if rng.random() < 0.5 else begin + int(rng.integers(left // 2, left - 30))  # noqa: PLR2004


def slow_rank(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Slow down one random rank."""
    rank, end = int(rng.integers(job.dials.world)), _end(job, rng, begin)
    job.computing[begin:end, rank] *= factor
    return PulseTruth(NoticeKind.SLOW_RANK, (rank,), begin, end, factor)


def slow_host(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Slow down all ranks of a random host."""
    each = min(job.dials.host_ranks, job.dials.world)
    first = each * int(rng.integers(job.dials.world // each))
    ranks, end = tuple(range(first, first + each)), _end(job, rng, begin)
    job.computing[begin:end, first : first + each] *= factor
    return PulseTruth(NoticeKind.SLOW_RANK, ranks, begin, end, factor)


def collector(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Let one random rank collect garbage in every step."""
    rank, end = int(rng.integers(job.dials.world)), _end(job, rng, begin)
    job.collecting[begin:end, rank] += (factor - 1) * job.computing[begin:end, rank]
    return PulseTruth(NoticeKind.SLOW_RANK, (rank,), begin, end, factor)


def slow_network(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Lengthen the collectives of all ranks."""
    end = _end(job, rng, begin)
    job.network[begin:end] += (factor - 1) * job.dials.step_s * 1e9
    return PulseTruth(NoticeKind.SLOW_JOB, (), begin, end, factor)


def slow_data(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Lengthen the data loading of all ranks."""
    end = _end(job, rng, begin)
    job.data[begin:end] += (factor - 1) * job.dials.step_s * 1e9
    return PulseTruth(NoticeKind.SLOW_JOB, (), begin, end, factor)


def slow_job(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Slow down the computing of all ranks."""
    end = _end(job, rng, begin)
    job.computing[begin:end] *= factor
    return PulseTruth(NoticeKind.SLOW_JOB, (), begin, end, factor)


def spells(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Slow down one random rank for some steps, periodically."""
    rank, period = int(rng.integers(job.dials.world)), int(rng.integers(10, 60))
    long = max(3, int(period * rng.uniform(0.2, 0.5)))
    steps = np.arange(begin, job.dials.steps)
    job.computing[steps[(steps - begin) % period < long], rank] *= factor
    return PulseTruth(NoticeKind.SPELLS, (rank,), begin, None, factor)


def rotating(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Slow down one random rank for some steps, then another one, and so on."""
    long, before = int(rng.integers(8, 30)), -1
    for first in range(begin, job.dials.steps, long):
        rank = int(rng.integers(job.dials.world))
        while rank == before:
            rank = int(rng.integers(job.dials.world))
        job.computing[first : first + long, rank] *= factor
        before = rank
    return PulseTruth(NoticeKind.SPELLS, (), begin, None, factor)


def drift(job: PulseJob, rng: np.random.Generator, begin: int, factor: float) -> PulseTruth:
    """Slow down one random rank increasingly until the last step."""
    rank, left = int(rng.integers(job.dials.world)), job.dials.steps - begin
    job.computing[begin:, rank] *= np.linspace(1, factor, left)
    return PulseTruth(NoticeKind.DRIFT, (rank,), begin, None, factor)


def more_tokens(job: PulseJob, rng: np.random.Generator, _begin: int, factor: float) -> PulseTruth:
    """Let one random replica have more tokens than the others in all steps."""
    replica = int(rng.integers(job.dials.dp))
    of_replica = np.arange(job.dials.world) % job.dials.dp == replica
    job.lengthen(np.where(of_replica, factor, 1.0))
    ranks = tuple(np.flatnonzero(of_replica).tolist())
    return PulseTruth(NoticeKind.IMBALANCE, ranks, 0, None, factor)


FAULTS: Final[Mapping[str, Fault]] = {
    "rank": slow_rank,
    "host": slow_host,
    "collector": collector,
    "network": slow_network,
    "data": slow_data,
    "job": slow_job,
    "spells": spells,
    "rotating": rotating,
    "drift": drift,
    "tokens": more_tokens,
}


_SHAPES: Final = ((8, 1), (16, 1), (4, 2), (8, 4), (32, 1), (2, 4), (64, 1), (16, 2))
# Earliest first step of a fault, and minimum number of steps after it.
_BEGINS: Final = 120
_LEAST_LEFT: Final = 200


@dataclass(frozen=True, slots=True, eq=False)
class DrawnPulse:
    """Rows of a random pulse, and the truth about its faults.

    Parameters
    ----------
    hosts : dict of int to str
        Empty where hosts are not known.
    rank_hours : float
        Hours times ranks.
    """

    rows: Pulses
    hosts: dict[int, str]
    truths: tuple[PulseTruth, ...]
    dials: PulseDials
    rank_hours: float
    step_s: float


def draw_dials(rng: np.random.Generator, steps: int, *, lengths: bool) -> PulseDials:
    """Return random sizes and noise of a job."""
    dp, pp = _SHAPES[int(rng.integers(len(_SHAPES)))]
    return PulseDials(
        dp,
        pp,
        steps,
        step_s=float(rng.choice([0.03, 0.3, 1.0, 1.0, 3.0])),
        noise=float(rng.uniform(0.005, 0.03)),
        offsets=float(rng.uniform(0, 0.015)),
        lengths=float(rng.uniform(0.05, 0.3)) if lengths else 0.0,
    )


def draw_pulse(  # noqa: PLR0913 - what is drawn
    seed: int,
    faults: Sequence[str],
    *,
    steps: int = 600,
    factor: float = 1.2,
    lengths: bool = False,
    long_tails: bool = False,
    step_s: float | None = None,
) -> DrawnPulse:
    """Return a random job with the given kinds of faults, in sequence, and random events.

    With `long_tails`, the numbers of tokens differ by several times, and computing has a part that
    is constant and one that grows with their square.
    """
    rng = stream(seed, "pulse", *faults)
    dials = draw_dials(rng, steps, lengths=lengths)
    dials = replace(dials, step_s=step_s or dials.step_s)
    if long_tails:
        dials = replace(
            dials,
            lengths=float(rng.uniform(0.4, 1.2)),
            constant=float(rng.uniform(0, 0.5)),
            squared=float(max(0.0, rng.uniform(-0.2, 0.2))),
        )
    if "host" in faults and dials.world <= dials.host_ranks:
        # A job on a single host has no other hosts with which a slow host could be compared.
        dials = replace(dials, dp=2 * dials.host_ranks, pp=1)
    job = PulseJob.healthy(dials, rng)
    for name in EVENTS:
        # A curriculum changes the times by which faults are measured, so that only healthy jobs get
        # one.
        if rng.random() < 0.4 and not (faults and name == "curriculum"):  # noqa: PLR2004
            EVENTS[name](job, rng)
    truths = []
    for number, name in enumerate(faults):
        span = (steps - _BEGINS - _LEAST_LEFT) // len(faults)
        begin = _BEGINS + span * number + int(rng.integers(max(1, span)))
        truths.append(FAULTS[name](job, rng, begin, factor))
    for truth in truths:
        # A fault of ranks whose rows are never sent could not be noticed.
        job.missing[:, list(truth.ranks)] = False
    parts = [job.rows()]
    if not faults and rng.random() < 0.3:  # noqa: PLR2004
        parts.append(_restarted(job, rng, parts[0]))
    rows = joined(parts)
    hours = float(len(rows) * np.median(job.step_ns) / 3.6e12)
    hosts = job.hosts if rng.random() < 0.8 else {}  # noqa: PLR2004
    return DrawnPulse(rows, hosts, tuple(truths), dials, hours, float(np.median(job.step_ns) / 1e9))


def _restarted(job: PulseJob, rng: np.random.Generator, before: Pulses) -> Pulses:
    """Return the rows of the job after a restart from an earlier step.

    Its world may be smaller or larger, and ranks have new baselines.
    """
    dials = job.dials
    if rng.random() < 0.5:  # noqa: PLR2004
        dp = max(2, dials.dp + int(rng.choice([-1, 1, 2])))
        dials = replace(dials, dp=dp, steps=max(200, dials.steps // 2))
    after = PulseJob.healthy(dials, rng)
    after.attempt = job.attempt + int(rng.integers(0, 2))
    after.first_step = max(0, job.dials.steps - int(rng.integers(5, 60)))
    after.start_ns = int(before.time_ns[-1] + rng.uniform(5, 300) * 1e9)
    after.computing[0] *= 5
    return after.rows()
