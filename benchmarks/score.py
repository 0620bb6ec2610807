"""Score the diagnosis on synthetic jobs with known causes; `make score` runs this.

Jobs have seeds of their own range, and are larger than those of the seeds below `HELD_OUT`, on
which the rules were tuned.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_context
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.context_parallel import CONTEXT_PARALLEL
from app.analysis.diagnosis.causes.memory_fragmentation import MEMORY_FRAGMENTATION
from app.analysis.diagnosis.causes.network import NETWORK
from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.causes.slow_worker import SLOW_WORKER
from app.analysis.diagnosis.causes.stage_imbalance import STAGE_IMBALANCE
from app.analysis.diagnosis.causes.tensor_parallel import TENSOR_STRAGGLER
from app.analysis.diagnosis.causes.thermal_throttling import THERMAL_THROTTLING
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.build import analyze
from app.analysis.report.document import NamedCause, Report
from app.analysis.synthesis.costs import healthy_work
from app.analysis.synthesis.execution import execute
from app.analysis.synthesis.host_sessions import HostSession
from app.analysis.synthesis.host_sessions import run as run_hosts
from app.analysis.synthesis.injections.computations import StageImbalance
from app.analysis.synthesis.job import LARGER, USUAL, stream
from app.analysis.synthesis.program import build_program
from app.analysis.synthesis.random_host_sessions import HOST_CAUSES, WAYS, draw_host_session
from app.analysis.synthesis.random_sessions import BETWEEN_STEPS, CAUSES, draw_session
from app.analysis.synthesis.synthesize import SyntheticSession, inject, step_numbers
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE


def slowdown_of(session: SyntheticSession | HostSession) -> float:
    """Return the ratio of a job's duration to its duration without its causes."""
    if isinstance(session, HostSession):
        return _of_hosts(session)
    heavy = [injection for injection in session.injections if isinstance(injection, StageImbalance)]
    if not heavy:
        return session.truth.slowdown
    job, seed = session.job, session.seed
    program = build_program(job)
    struck, even = (healthy_work(job, program, seed) for _ in range(2))
    struck.numbers = step_numbers(job, seed)
    inject(struck, job, heavy, seed)
    for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE):
        of_type = program.of_types(name)
        even.duration_ns[of_type] *= (
            struck.duration_ns[of_type].sum() / even.duration_ns[of_type].sum()
        )
    even_s = execute(even, job.costs.contention).step_times_ns().sum() / 1e9
    return float(sum(session.truth.step_times_s) / even_s)


def _of_hosts(session: HostSession) -> float:
    job = session.job
    if session.truth.stage is None:
        return session.truth.slowdown
    factor = 1 + sum(f - 1 for f in job.factors.values()) / (job.dp * job.pp)
    everybody = {(dp, stage): factor for dp in range(job.dp) for stage in range(job.pp)}
    even = run_hosts(replace(job, factors=everybody))
    return sum(session.truth.step_times_s) / sum(even.truth.step_times_s)


# Seeds from this one on were never used while the rules were tuned.
HELD_OUT: Final = 1_000_000
NONE: Final = "none"
# Jobs with a larger slowdown than this count in F1 (paper, section 4). Numbers of healthy jobs, and
# of jobs with two causes, among a hundred; the others have one cause.
HEALTHY: Final = 20
MIXTURES: Final = 15
# Allowed relative error of a headline.
NEAR: Final = 0.03
# Share of the jobs that run as real hosts do, and not by the paper's dependency model.
HOSTS: Final = 0.2
_WORKER_CAUSES: Final = {
    SLOW_WORKER.name,
    THERMAL_THROTTLING.name,
    NETWORK.name,
    MEMORY_FRAGMENTATION.name,
    TENSOR_STRAGGLER.name,
    CONTEXT_PARALLEL.name,
}
_SHORT: Final = {**{kind.name: kind.word for kind in KINDS.values()}, NONE: NONE, UNKNOWN: UNKNOWN}


@dataclass(frozen=True, slots=True)
class Scored:
    """A job: its true causes and slowdown, and those of its report."""

    seed: int
    causes: tuple[str, ...]
    slowdown: float
    measured: float
    named: tuple[str, ...]
    confidence: tuple[float, ...]
    contribution: tuple[float, ...]
    worker_right: bool | None
    stage_right: bool | None
    level: str
    way: str | None = None
    headline: float = 1.0
    # true slowdown that the headline is compared with: of a heavy stage, relative to an even
    # division of its layers
    without_causes: float = 1.0

    @property
    def near(self) -> bool:
        """Return whether the headline is within the allowed error."""
        return abs(self.headline / self.without_causes - 1) <= NEAR


def score_job(seed: int) -> Scored:
    """Draw the job of a seed, analyze it, and compare the report with the truth."""
    if stream(seed, "score hosts").random() < HOSTS:
        return _score_host_job(seed)
    rng = stream(seed, "score")
    kind = int(rng.integers(100))
    order = [str(cause) for cause in rng.permutation(list(CAUSES))]
    count = 0 if kind < HEALTHY else 2 if kind < HEALTHY + MIXTURES else 1
    causes = _compatible(order)[:count] if count > 1 else tuple(order[:count])
    slowdown = 1.12 + float(rng.exponential(0.3))
    sizes = LARGER if seed >= HELD_OUT else USUAL
    return _score(draw_session(causes, min(slowdown, 3.0), seed, sizes), seed)


@dataclass(frozen=True, slots=True, eq=False)
class DrawnJob:
    """A job before its analysis; `way` is the hosts' way to run it, None for the paper's model."""

    seed: int
    session: SyntheticSession | HostSession
    way: str | None = None

    def score(self) -> Scored:
        """Analyze the job and compare the report with the truth."""
        return _score(self.session, self.seed, self.way)


def draw_kind(seed: int, cause: str | None) -> DrawnJob:
    """Draw the job of a seed with a given cause, or without one."""
    as_hosts = cause is None or cause in HOST_CAUSES
    rng = stream(seed, "score", "kind")
    if as_hosts and rng.random() < HOSTS:
        way, slowdown = str(rng.choice(list(WAYS))), min(1.3 + float(rng.exponential(0.4)), 3.0)
        return DrawnJob(seed, draw_host_session(cause, slowdown, seed, way), way)
    slowdown = min(1.12 + float(rng.exponential(0.3)), 3.0)
    causes = () if cause is None else (cause,)
    return DrawnJob(seed, draw_session(causes, slowdown, seed, LARGER))


def _score_host_job(seed: int) -> Scored:
    """Score a job that runs as real hosts do."""
    rng = stream(seed, "score", "host job")
    way, cause = str(rng.choice(list(WAYS))), str(rng.choice(list(HOST_CAUSES)))
    healthy = bool(rng.integers(100) < HEALTHY)
    slowdown = min(1.3 + float(rng.exponential(0.4)), 3.0)
    session = draw_host_session(None if healthy else cause, slowdown, seed, way)
    return _score(session, seed, way)


def _score(session: SyntheticSession | HostSession, seed: int, way: str | None = None) -> Scored:
    """Analyze a session and compare the report with the truth."""
    report = analyze(session.trace).report
    slowdown, headline, without = _slowdowns(session, report)
    causes = report.causes
    named = tuple(cause.cause for cause in causes)
    return Scored(
        seed=seed,
        causes=session.truth.causes,
        slowdown=slowdown,
        measured=report.slowdown,
        named=named,
        confidence=tuple(cause.confidence or 0.0 for cause in causes),
        contribution=tuple(cause.contribution or 0.0 for cause in causes),
        worker_right=_worker_right(session.truth.causes, session.truth.workers, causes),
        stage_right=_stage_right(session.truth.causes, session.truth.stage, causes),
        level=report.verdict.level,
        way=way,
        headline=headline,
        without_causes=without,
    )


def true_slowdown_of(session: SyntheticSession | HostSession) -> float:
    """Return a job's slowdown: of its steps, or if these are equal, of the time between steps."""
    between = isinstance(session, SyntheticSession) and BETWEEN_STEPS & set(session.truth.causes)
    return session.truth.turn_slowdown if between else session.truth.slowdown


def _slowdowns(
    session: SyntheticSession | HostSession, report: Report
) -> tuple[float, float, float]:
    """Return a job's slowdown, the slowdown of its report, and the true value of the latter.

    No headline includes a delay between steps, but its cause states the share of the time that it
    costs. The time before the first step is not recorded.
    """
    truth = session.truth
    if isinstance(session, HostSession) or not BETWEEN_STEPS & set(truth.causes):
        return truth.slowdown, report.headline.slowdown, slowdown_of(session)
    lost_s = sum(cause.cost_s or 0.0 for cause in report.causes)
    said = 1 / (1 - lost_s / report.diagnosis.turn_s) if report.diagnosis.turn_s else 1.0
    turns = zip(truth.turns_s[1:], truth.healthy_turns_s[1:], strict=True)
    taken_s, healthy_s = (sum(times) for times in zip(*turns, strict=True))
    return truth.turn_slowdown, said, taken_s / healthy_s


def _compatible(order: Sequence[str]) -> tuple[str, ...]:
    """Return causes that can be distinguished: at most one cause of a single worker."""
    chosen: list[str] = []
    for cause in order:
        if cause in _WORKER_CAUSES and _WORKER_CAUSES & set(chosen):
            continue
        chosen.append(cause)
    return tuple(chosen)


def _worker_right(
    causes: Sequence[str], workers: Sequence[tuple[int, int]], blamed: Sequence[NamedCause]
) -> bool | None:
    """Return whether the worker that is blamed first is a true one; some jobs have several."""
    if len(causes) != 1 or causes[0] not in _WORKER_CAUSES:
        return None
    named = next((c for c in blamed if c.cause in _WORKER_CAUSES), None)
    if named is None:
        return False
    return bool(named.where.workers) and named.where.workers[0] in workers


def _stage_right(
    causes: Sequence[str], stage: int | None, named: Sequence[NamedCause]
) -> bool | None:
    name = STAGE_IMBALANCE.name
    if name not in causes:
        return None
    return any(c.where.stage == stage for c in named if c.cause == name)


def run(first_seed: int, jobs: int, processes: int) -> list[Scored]:
    """Score jobs of consecutive seeds."""
    seeds = range(first_seed, first_seed + jobs)
    if processes == 1:
        return [score_job(seed) for seed in seeds]
    with get_context("spawn").Pool(processes) as pool:
        return list(pool.imap(score_job, seeds, chunksize=4))


def lead(scored: Scored) -> str:
    """Return the cause that the report names first."""
    return scored.named[0] if scored.named else NONE


def macro_f1(singles: Sequence[Scored]) -> float:
    """Return the mean of F1 over the causes; healthy jobs are negatives."""
    scores = []
    for cause in CAUSES:
        true = sum(s.causes == (cause,) for s in singles)
        named = sum(lead(s) == cause for s in singles)
        both = sum(s.causes == (cause,) and lead(s) == cause for s in singles)
        if true:
            scores.append(2 * both / (true + named))
    return float(np.mean(scores)) if scores else float("nan")


def lines(results: Sequence[Scored]) -> Iterator[str]:
    """Yield the report."""
    slow = [s for s in results if len(s.causes) == 1 and s.slowdown >= STRAGGLING]
    mild = [s for s in results if len(s.causes) == 1 and s.slowdown < STRAGGLING]
    healthy = [s for s in results if not s.causes]
    mixtures = [s for s in results if len(s.causes) > 1 and s.slowdown >= STRAGGLING]
    yield (
        f"{len(results)} jobs: {len(slow)} slow ones with one cause, {len(mixtures)} with two, "
        f"{len(healthy)} healthy; {len(mild)} with a cause that slows them below {STRAGGLING}"
    )
    tuned = sum(s.seed < HELD_OUT for s in results)
    if tuned:
        yield f"{tuned} of them are of seeds below {HELD_OUT:,}, on which the rules were made"
    yield ""
    columns = [*CAUSES, UNKNOWN, NONE]
    yield f"{'true, named →':<12}" + "".join(f"{_SHORT[c]:>10}" for c in columns) + f"{'F1':>10}"
    for cause in [*CAUSES, NONE]:
        row = healthy if cause == NONE else [s for s in slow if s.causes == (cause,)]
        counts = Counter(lead(s) for s in row)
        f1 = f"{macro_f1_of(cause, [*slow, *healthy]):10.3f}" if cause != NONE else ""
        yield f"{_SHORT[cause]:<12}" + "".join(f"{counts[c] or '.':>10}" for c in columns) + f1
    yield ""
    complete = sum(set(s.causes) <= set(s.named) for s in mixtures)
    least = sum(bool(set(s.causes) & set(s.named[:1])) for s in mixtures)
    spurious = sum(bool(set(s.named) - set(s.causes) - {UNKNOWN}) for s in [*slow, *mixtures])
    yield (
        f"{len(mixtures)} mixtures of two causes: first cause right in {least}, both named in "
        f"{complete}"
    )
    sick = len(slow) + len(mixtures)
    yield f"A cause that is not there is named in {spurious} of {sick} slow jobs"
    stages = [s.stage_right for s in [*slow, *mixtures] if s.stage_right is not None]
    yield f"Stage right in {sum(stages)} of {len(stages)}"
    yield from host_jobs([s for s in results if s.way is not None])
    yield from headlines(slow)
    yield from calibration([*slow, *healthy, *mixtures])
    workers = [s.worker_right for s in slow if s.worker_right is not None]
    alarms = sum(bool(s.named) for s in healthy)
    yield ""
    yield (
        f"macro F1 {macro_f1([*slow, *healthy]):.2f}, "
        f"false alarms {alarms / max(len(healthy), 1):.1%}, "
        f"worst worker {sum(workers) / max(len(workers), 1):.1%}"
    ).replace("%", " %")


def headlines(slow: Sequence[Scored]) -> Iterator[str]:
    """Yield the accuracy of headlines by cause."""
    if not slow:
        return
    near = 100 * float(np.mean([s.near for s in slow]))
    yield f"Headline within 3 % of the true slowdown in {near:.1f} % of slow jobs with one cause"
    yield f"  {'':<12}{'jobs':>6}{'headline ÷ true, 5 to 95 %':>30}{'within 3 %':>12}"
    for cause in CAUSES:
        of_cause = [s for s in slow if s.causes == (cause,)]
        if of_cause:
            ratio = np.array([s.headline / s.without_causes for s in of_cause])
            low, middle, high = np.quantile(ratio, (0.05, 0.5, 0.95))
            share = 100 * float(np.mean([s.near for s in of_cause]))
            yield (
                f"  {_SHORT[cause]:<12}{len(of_cause):>6}"
                f"{f'{middle:.3f}  {low:.3f} to {high:.3f}':>30}{share:>10.0f} %"
            )


def host_jobs(results: Sequence[Scored]) -> Iterator[str]:
    """Yield the accuracy of reports on jobs that run as real hosts do."""
    if not results:
        return
    slow = [s for s in results if s.causes and s.slowdown >= STRAGGLING]
    healthy = [s for s in results if not s.causes]
    right = sum(lead(s) == s.causes[0] for s in slow)
    alarms = sum(bool(s.named) for s in healthy)
    withheld = sum(s.level == "none" for s in results)
    yield (
        f"{len(results)} of them run as their hosts do (blocking, windowed, in a V…): first cause "
        f"right in {right} of {len(slow)} slow ones, {alarms} alarms in {len(healthy)} healthy "
        f"ones, {withheld} without a verdict"
    )


def macro_f1_of(cause: str, singles: Sequence[Scored]) -> float:
    """Return F1 of a cause."""
    true = sum(s.causes == (cause,) for s in singles)
    named = sum(lead(s) == cause for s in singles)
    both = sum(s.causes == (cause,) and lead(s) == cause for s in singles)
    return 2 * both / (true + named) if true + named else float("nan")


def calibration(results: Sequence[Scored]) -> Iterator[str]:
    """Yield the share of true causes for each level of confidence."""
    pairs = [
        (sure, cause in s.causes)
        for s in results
        for cause, sure in zip(s.named, s.confidence, strict=True)
        if cause != UNKNOWN
    ]
    bounds = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.01)
    yield "Confidence, causes named with it, share of them that are there"
    for low, high in pairwise(bounds):
        hits = [present for sure, present in pairs if low <= sure < high]
        if hits:
            share = 100 * float(np.mean(hits))
            yield f"  {low:.2f} to {min(high, 1.0):.2f} {len(hits):6d} {share:7.1f} %"


def main() -> None:
    """Print the confusion matrix and, last, the three figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=HELD_OUT, help="seed of the first job")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--misses", action="store_true", help="also print what was missed")
    arguments = parser.parse_args()
    results = run(arguments.seed, arguments.jobs, arguments.processes)
    if arguments.misses:
        for scored in results:
            if not (set(scored.causes) or {NONE}) <= {*scored.named, lead(scored)} or (
                scored.worker_right is False
            ):
                print(scored)
    for line in lines(results):
        print(line)


if __name__ == "__main__":
    main()
