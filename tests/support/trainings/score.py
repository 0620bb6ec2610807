"""Scores reports of profiler files without labels; `make recordings-score` runs this.

Trainings of every kind run on simulated hosts and devices (`tests.support.trainings`), healthy or
with one fault. The true slowdown is the step time relative to the same training without the fault.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np

from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.cli.convert import read_recordings
from app.errors import PacelineError
from tests.support.trainings.files import step_ns, write_training
from tests.support.trainings.job import Fault, Kind, Style, Training, Writer

WITHIN: Final = 0.05
_WARM_UP: Final = 2  # steps
HEALTHY: Final = 1.03
# Faults that cost less are not judged: for example a late host whose device has enough queued work.
_SHOWS: Final = 1.02
# Trainings that gather or reduce within groups of their ranks: (ranks, ranks of a group).
_GROUPED: Final = {
    Kind.HSDP: (8, 4),
    Kind.TENSOR: (8, 2),
    Kind.TENSOR_SHARDED: (8, 2),
    Kind.CONTEXT: (8, 2),
    Kind.EXPERTS: (4, 4),
}
_TENSOR: Final = (Kind.TENSOR, Kind.TENSOR_SHARDED)
_STYLES: Final = (
    Style(),
    Style(groups_listed=False),
    Style(groups_named=True),
    Style(arguments=False),
    Style(Writer.RECORDS),
    Style(Writer.OLD),
    Style(Writer.ROCM),
    Style(Writer.XPU),
    Style(rank_said=False),
    Style(numbered=False),
    Style(noise=True),
    Style(clock_ns=200_000_000),
)


class Condition(Enum):
    """The fault of a training."""

    NONE = "none"
    SLOW_LITTLE = "slow rank, 1.1"
    SLOW = "slow rank, 1.3"
    SLOW_MUCH = "slow rank, 1.6"
    LOADER = "late loader"
    LATE_HOST = "late host"
    ALL_LATE = "all hosts late"


_CAUSES: Final = {Condition.LOADER: "data_loading", Condition.LATE_HOST: "host_overhead"}
_FACTORS: Final = {Condition.SLOW_LITTLE: 1.1, Condition.SLOW: 1.3, Condition.SLOW_MUCH: 1.6}


@dataclass(frozen=True, slots=True)
class Job:
    """A training whose files are scored."""

    number: int
    condition: Condition
    training: Training
    style: Style


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of a report, and the truth."""

    job: Job
    said: float
    true: float
    cause: str
    right: bool  # first cause and its rank; with nothing wrong: no rank is named

    @property
    def near(self) -> bool:
        """Return whether the slowdown is within 5 % of the truth."""
        return abs(self.said / self.true - 1) <= WITHIN


def table() -> Iterator[Job]:
    """Yield every kind under every condition, in the sizes of the tests."""
    for number, (kind, condition) in enumerate(product(Kind, Condition)):
        ranks, inner = _GROUPED.get(kind, (4, 1))
        training = Training(
            kind, ranks=ranks, inner=inner, layers=3, kernels=3, steps=7, lead_ns=20_000_000
        )
        fault = _fault(condition, 1, training, late=45.0)
        style = Style(windows=((_WARM_UP, training.steps - 1),))
        yield Job(number, condition, replace(training, fault=fault), style)


def drawn(seed: int, jobs: int) -> Iterator[Job]:
    """Yield trainings of random size."""
    kinds, conditions = list(Kind), list(Condition)
    for number in range(jobs):
        draw = np.random.default_rng([seed, number])
        kind = kinds[int(draw.integers(len(kinds)))]
        condition = conditions[int(draw.integers(len(conditions)))]
        ranks, inner = _GROUPED.get(kind, (int(draw.choice([2, 4, 8])), 1))
        layer_ns = int(draw.uniform(1e6, 8e6))
        training = Training(
            kind,
            ranks=ranks,
            inner=inner,
            layers=int(draw.integers(2, 11)),
            kernels=int(draw.integers(2, 7)),
            steps=_WARM_UP + int(draw.integers(3, 8)),
            layer_ns=layer_ns,
            transfer_ns=int(layer_ns * draw.uniform(0.05, 0.8)),
            lead_ns=int(draw.choice([20e6, 100e6, 1e9])),
            operators=int(draw.integers(1, 5)),
            seed=int(draw.integers(1 << 30)),
        )
        calls = training.kernels * (training.operators + 2) * 9_000
        late = layer_ns / calls * draw.uniform(1.3, 2.5)
        fault = _fault(condition, int(draw.integers(ranks)), training, late=float(late))
        style = _STYLES[int(draw.integers(len(_STYLES)))]
        # Before a profiler records, it waits and warms up.
        style = replace(style, windows=((_WARM_UP, training.steps - 1),))
        yield Job(number, condition, replace(training, fault=fault), style)


def _fault(condition: Condition, rank: int, training: Training, *, late: float) -> Fault:
    match condition:
        case Condition.NONE:
            return Fault()
        case Condition.LOADER:
            # Hosts run ahead of their devices: a batch delays a step only if it takes longer than
            # that lead.
            step = 3 * training.layers * training.layer_ns
            return Fault(loading_rank=rank, loading_ns=int(1.4 * step))
        case Condition.LATE_HOST:
            return Fault(late_rank=rank, late_factor=late)
        case Condition.ALL_LATE:
            return Fault(late_factor=late)
        case Condition.SLOW_LITTLE | Condition.SLOW | Condition.SLOW_MUCH:
            return Fault(slow_rank=rank, slow_factor=_FACTORS[condition])


def judge(job: Job) -> Outcome:
    """Write the files of a job, analyze them, and compare the report with the truth."""
    with tempfile.TemporaryDirectory(prefix="paceline-score-") as directory:
        folder = Path(directory)
        taken = write_training(job.training, job.style, folder)
        try:
            report = analyze(read_recordings([folder], None, None).trace).report
        except PacelineError as error:
            return Outcome(job, 0.0, 1.0, str(error), right=False)
    true = taken / step_ns(job.training.healthy(), job.style)
    said = report.headline.slowdown
    first = report.causes[0] if report.causes else None
    cause = "no cause" if first is None else f"{first.cause} {first.where.dp} {first.where.workers}"
    return Outcome(job, said, true, cause, _is_right(job, report, said, true))


def _is_right(job: Job, report: Report, said: float, true: float) -> bool:
    fault = job.training.fault
    rank = next(
        (r for r in (fault.slow_rank, fault.late_rank, fault.loading_rank) if r is not None), None
    )
    if rank is None or true < _SHOWS:
        late = (
            job.condition is Condition.ALL_LATE
            and len(report.causes) > 0
            and report.causes[0].cause == _CAUSES[Condition.LATE_HOST]
        )
        accused = any(cause.where.workers for cause in report.causes)
        return not accused and (late or said <= HEALTHY)
    if not report.causes:
        return False
    first = report.causes[0]
    # If a file has no groups, each rank is a worker.
    within = job.training.kind in _TENSOR and report.sizes.dp < job.training.ranks
    slow = "tensor_parallel_straggler" if within else "slow_worker"
    wanted = _CAUSES.get(job.condition, slow)
    worker = rank // (job.training.ranks // report.sizes.dp)
    where = first.where
    named = (where.dp,) if where.dp is not None else tuple(dp for dp, _ in where.workers)
    return first.cause == wanted and named[:1] == (worker,)


def main() -> None:
    """Score trainings, and print a table and the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=0, help="random ones; without it every kind")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    jobs = list(drawn(args.seed, args.jobs) if args.jobs else table())
    with get_context("spawn").Pool(args.processes) as pool:
        outcomes = list(pool.imap(judge, jobs, chunksize=2))
    for line in summary(outcomes):
        sys.stdout.write(line + "\n")


def _said(style: Style) -> str:
    """Return how a style differs from the default style."""
    usual = Style()
    return " ".join(
        f"{part.name}={getattr(style, part.name)}"
        for part in fields(style)
        if part.name != "windows" and getattr(style, part.name) != getattr(usual, part.name)
    )


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the wrong verdicts, a table by condition, and the three main figures."""
    for one in outcomes:
        if not (one.right and one.near):
            training = one.job.training
            yield (
                f"{training.kind.name:<18} {one.job.condition.value:<15} said {one.said:.3f} "
                f"true {one.true:.3f} {one.cause}  # {one.job.number} {_said(one.job.style)}"
            )
    yield ""
    yield "| condition | jobs | cause and rank right | slowdown within 5 % | farthest off |"
    yield "| --- | --- | --- | --- | --- |"
    for condition in Condition:
        mine = [one for one in outcomes if one.job.condition is condition]
        if mine:
            right, near = sum(one.right for one in mine), sum(one.near for one in mine)
            worst = max(abs(one.said / one.true - 1) for one in mine)
            yield f"| {condition.value} | {len(mine)} | {right} | {near} | {100 * worst:.1f} % |"
    all_right = sum(one.right for one in outcomes) / len(outcomes)
    all_near = sum(one.near for one in outcomes) / len(outcomes)
    healthy = [one.said for one in outcomes if one.job.training.fault == Fault()]
    yield (
        f"right {100 * all_right:.1f} %, within 5 % {100 * all_near:.1f} %, "
        f"worst healthy {max(healthy, default=1.0):.3f}"
    )


if __name__ == "__main__":
    main()
