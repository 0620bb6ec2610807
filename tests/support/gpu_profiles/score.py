"""Score the reports of profiler files that `tests.support.gpu_profiles` writes.

The second table of `make recordings-score`. Each job runs twice, with its fault and without: the
ratio of its step times is the true slowdown. A network that is slow for all ranks in all steps has
nothing to be compared with, so the true answer is a slowdown of 1 and no worker.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np

from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.cli.convert import read_recordings
from app.errors import PacelineError
from tests.support.gpu_profiles.files import write
from tests.support.gpu_profiles.job import MS, US, Fault, Job, Mode, Style, Writer
from tests.support.gpu_profiles.machine import Machine, step_time_ns
from tests.support.gpu_profiles.programs import run

WITHIN: Final = 0.05
HEALTHY: Final = 1.03
# A cause below this slowdown need not be named: `docs/diagnosis.md` names from 2.5 % of a step on.
_NAMED: Final = 1.035
_WORST: Final = 10
_WORST_OF_KIND: Final = 3  # so that one kind does not hide the others
_LARGE: Final = 16  # ranks; larger jobs are drawn smaller otherwise, as files take long to write
_RANKS: Final = (4, 8, 16, 32, 64)
_BUCKETS: Final = (1, 2, 4, 8, 12, 20, 40)


class Condition(Enum):
    """What is wrong with a training."""

    NONE = "none"
    SLOW = "slow GPU"
    LOADER = "slow loader of a rank"
    NETWORK = "slow network, always"
    SPELLS = "slow network, some steps"


@dataclass(frozen=True, slots=True)
class Case:
    """A training whose files are judged."""

    number: int
    condition: Condition
    job: Job
    style: Style

    @property
    def kind(self) -> str:
        """Return what the score is summed up by."""
        return f"{self.job.mode.name[:4]}, {self.condition.value}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report of a case, and the truth."""

    case: Case
    reported: float
    true: float
    cause: str
    right: bool  # first cause and its rank; nothing where nothing is wrong

    @property
    def error(self) -> float:
        """Return how far the reported slowdown is from the true one, as a share of it."""
        return abs(self.reported / self.true - 1)

    @property
    def near(self) -> bool:
        """Return whether the slowdown is within 5 %, or within 3 % of a healthy job's."""
        if self.true == 1:
            return self.reported <= HEALTHY
        return self.error <= WITHIN


def case(seed: int, number: int) -> Case:
    """Draw a case; conditions and modes take turns, everything else is random."""
    random = np.random.default_rng((seed, number))
    condition = list(Condition)[number % len(Condition)]
    sharded = Mode.FSDP1 if random.random() < 0.5 else Mode.FSDP2
    mode = sharded if number // len(Condition) % 2 else Mode.DDP
    ddp = mode is Mode.DDP
    writers = list(Writer) if mode is not Mode.FSDP2 else [Writer.GROUPS, Writer.NUMBERED]
    writer = writers[int(random.integers(len(writers)))]
    ranks, buckets = int(random.choice(_RANKS)), int(random.choice(_BUCKETS))
    if ranks > _LARGE:
        buckets = min(buckets, 12)
    steps = int(random.integers(3, 9 if ranks <= _LARGE else 5))
    job = Job(
        mode=mode,
        ranks=ranks,
        buckets=buckets,
        # Collectives of one process group share a stream before PyTorch 2.7.
        streams=int(random.integers(1, 3)) if ddp or writer is Writer.NUMBERED else 1,
        steps=max(steps, 6) if condition is Condition.SPELLS else steps,
        layers=max(12 if random.random() < 0.5 else 6, buckets),
        forward_ns=int(random.uniform(20, 120) * MS),
        exchange=float(random.choice([0.15, 0.4, 0.7, 1.0, 1.3])),
        host_ns=int(random.uniform(10, 30) * US),
        synchronized=bool(random.random() < 0.6),
        copies_back=ddp and bool(random.random() < 0.5),
        coalesced=ddp and bool(random.random() < 0.2),
        clipping=not ddp and bool(random.random() < 0.3),
        compiled=bool(random.random() < 0.2),
        gap_ns=int(random.choice([0, 1500])),
        noise=float(random.choice([0.003, 0.01, 0.02])),
        seed=seed * 100_003 + number,
    )
    style = Style(
        writer=writer,
        clock_ns=int(random.choice([1, 20, 200]) * MS),
        drift_ppm=float(random.choice([0, 2, 20])),
        memory=bool(random.random() < 0.3),
        compressed=bool(random.random() < 0.5),
        named_by_host=bool(random.random() < 0.3),
        cut_rank=int(random.integers(ranks)) if random.random() < 0.1 else None,
    )
    if condition is Condition.SPELLS:
        # The true slowdown is that of all steps, and a cut rank's last step cannot be judged.
        style = replace(style, cut_rank=None)
    return Case(number, condition, replace(job, fault=_fault(condition, job, random)), style)


def _fault(condition: Condition, job: Job, random: np.random.Generator) -> Fault:
    rank = int(random.integers(job.ranks))
    match condition:
        case Condition.NONE:
            return Fault()
        case Condition.SLOW:
            return Fault(slow_rank=rank, slow_factor=float(random.uniform(1.2, 2)))
        case Condition.LOADER:
            # Hosts that run ahead hide loading up to a step's time.
            share = random.uniform(0.1, 0.8) + (0 if job.synchronized else 1)
            return Fault(loading_rank=rank, loading_ns=int(share * step_time_ns(run(job))))
        case Condition.NETWORK:
            return Fault(network_factor=float(random.uniform(2, 5)))
        case Condition.SPELLS:
            slow = random.choice(job.steps, size=2, replace=False)
            return Fault(
                network_factor=float(random.uniform(3, 8)), network_steps=frozenset(slow.tolist())
            )


def truth(machine: Machine) -> float:
    """Return the true slowdown: the step time with the fault ÷ that of the same job without it."""
    job = machine.job
    if job.fault.network_factor > 1 and job.fault.network_steps is None:
        return 1.0
    return step_time_ns(machine) / step_time_ns(run(job.healthy()))


def judge(case: Case) -> Outcome:
    """Write the files of a case, read them, and compare the report with the truth."""
    machine = run(case.job)
    true = truth(machine)
    with tempfile.TemporaryDirectory(prefix="paceline-score-") as directory:
        folder = Path(directory)
        write(machine, case.style, folder)
        try:
            report = analyze(read_recordings([folder], None, None).trace).report
        except PacelineError as error:
            return Outcome(case, 0.0, true, f"refused: {error}", right=False)
    first = report.causes[0] if report.causes else None
    cause = "no cause"
    if first is not None:
        cause = f"{first.cause} dp={first.where.dp} workers={first.where.workers[:3]}"
    if not report.fidelity.verdict:
        cause += ", verdict on S withheld"
    return Outcome(case, report.headline.slowdown, true, cause, _is_right(case, report, true))


def _is_right(case: Case, report: Report, true: float) -> bool:
    accused = [
        dp for cause in report.causes for dp in _accused(cause.where.dp, cause.where.workers)
    ]
    fault = case.job.fault
    rank = fault.slow_rank if fault.slow_rank is not None else fault.loading_rank
    first = report.causes[0].cause if report.causes else None
    if case.condition in {Condition.NONE, Condition.NETWORK}:
        allowed = {None} if case.condition is Condition.NONE else {None, "network"}
        return not accused and first in allowed
    if first is None:
        return true < _NAMED
    if case.condition is Condition.SPELLS:
        return not accused and first in {"network", "network_congestion"}
    wanted = "slow_worker" if case.condition is Condition.SLOW else "data_loading"
    where = report.causes[0].where
    return first == wanted and _accused(where.dp, where.workers)[:1] == [rank]


def _accused(dp: int | None, workers: Sequence[tuple[int, int]]) -> list[int]:
    return [dp] if dp is not None else [worker for worker, _ in workers]


def _differences(value: Fault | Job | Style) -> str:
    """Return the fields that differ from their defaults."""
    parts = [(part.name, getattr(value, part.name), part.default) for part in fields(value)]
    return " ".join(
        f"{name}={actual.name if isinstance(actual, Enum) else actual}"
        for name, actual, default in parts
        if actual != default and not (isinstance(actual, Fault) and actual == Fault())
    )


def summary(outcomes: Sequence[Outcome], seed: int) -> Iterator[str]:
    """Yield a table by kind, the shares, and the worst cases with how to repeat each."""
    yield "| GPU profiles | jobs | cause and rank right | slowdown within 5 % | farthest off |"
    yield "| --- | --- | --- | --- | --- |"
    for kind in sorted({outcome.case.kind for outcome in outcomes}):
        mine = [outcome for outcome in outcomes if outcome.case.kind == kind]
        right, near = sum(o.right for o in mine), sum(o.near for o in mine)
        worst = max(o.error for o in mine)
        yield f"| {kind} | {len(mine)} | {right} | {near} | {100 * worst:.1f} % |"
    all_right = 100 * sum(o.right for o in outcomes) / len(outcomes)
    all_near = 100 * sum(o.near for o in outcomes) / len(outcomes)
    healthy = max((o.reported for o in outcomes if o.case.condition is Condition.NONE), default=1)
    yield (f"right {all_right:.1f} %, within 5 % {all_near:.1f} %, worst healthy {healthy:.3f}")
    wrong = [outcome for outcome in outcomes if not (outcome.right and outcome.near)]
    wrong.sort(key=lambda outcome: (outcome.right, -outcome.error))
    shown: Counter[str] = Counter()
    for outcome in wrong:
        if shown[outcome.case.kind] >= _WORST_OF_KIND or shown.total() >= _WORST:
            continue
        shown[outcome.case.kind] += 1
        yield ""
        yield (
            f"{outcome.case.kind}: reported {outcome.reported:.3f}, true {outcome.true:.3f}, "
            f"{outcome.cause}"
        )
        yield f"  {_differences(outcome.case.job.fault)}"
        yield f"  {_differences(outcome.case.job.healthy())} {_differences(outcome.case.style)}"
        yield (
            "  python -m tests.support.gpu_profiles.score "
            f"--seed {seed} --case {outcome.case.number} --keep FOLDER"
        )


def main() -> None:
    """Judge, and print; or keep the files of one case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--case", type=int, help="number of the only case to judge")
    parser.add_argument("--keep", type=Path, help="folder for the files of that case")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    if args.case is not None:
        only = case(args.seed, args.case)
        if args.keep is not None:
            args.keep.mkdir(parents=True, exist_ok=True)
            write(run(only.job), only.style, args.keep)
        outcomes = [judge(only)]
    else:
        cases = [case(args.seed, number) for number in range(args.jobs)]
        with get_context("spawn").Pool(args.processes) as pool:
            outcomes = list(pool.imap(judge, cases, chunksize=1))
    for line in summary(outcomes, args.seed):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
