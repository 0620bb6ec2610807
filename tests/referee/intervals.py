"""The share of headline intervals that contain a job's slowdown, on the second physics.

``make fidelity PHYSICS=independent ARGS="--jobs 30"``: sessions cut out of long jobs. Causes that
are not named have no interval; `make score PHYSICS=independent` prints how often that happens.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.trace.model import Trace
from tests.oracles.physics.draw import FAULTS, draw_worlds, run_job
from tests.oracles.physics.shape import Shape
from tests.referee.judging import STRAGGLING, trace_of

# Numbers of steps of a job and of a session, and the first steps of the sessions.
STEPS: Final = 144
SESSION_STEPS: Final = 24
STARTS: Final = (24, 96)
# Maximum number of passes in a step: larger jobs take too long to execute.
_MOST_PASSES: Final = 240
# Faults without a constant slowdown of the job: they begin at some step, or grow, or have a period
# longer than the job.
UNSTEADY: Final = ("worker from a step on", "gc growing", "congestion by the hour")
_COLUMNS: Final = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")


@dataclass(frozen=True, slots=True)
class Held:
    """A session, and the slowdown of its job.

    Parameters
    ----------
    fault : str
    slowdown : float
        True slowdown of the job.
    headline : float
        Headline of the session.
    interval : (float, float) or None
        None if the headline is S, or has no interval.
    """

    fault: str
    slowdown: float
    headline: float
    interval: tuple[float, float] | None

    @property
    def below(self) -> bool:
        """Return whether the job's slowdown is below the interval."""
        return self.interval is not None and self.slowdown < self.interval[0]

    @property
    def above(self) -> bool:
        """Return whether the job's slowdown is above the interval."""
        return self.interval is not None and self.slowdown > self.interval[1]


def hold(wanted: tuple[str, int]) -> list[Held]:
    """Analyze the sessions of a job of a fault and a seed; none if the job is hardly slow."""
    fault, seed = wanted
    job = run_job(draw_worlds(seed, fault, fits=_is_small, steps=STEPS))
    if job.slowdown < STRAGGLING:
        return []
    trace = trace_of(job.recording())
    return [_held(fault, job.slowdown, analyze(_cut(trace, first)).report) for first in STARTS]


def _held(fault: str, slowdown: float, report: Report) -> Held:
    shown = report.headline
    interval = shown.ci95 if shown.kind == HeadlineKind.CAUSES else None
    return Held(fault, slowdown, shown.slowdown, interval)


def _is_small(shape: Shape) -> bool:
    return shape.dp * shape.pp * shape.vpp * shape.microbatches * shape.tp <= _MOST_PASSES


def _cut(trace: Trace, first: int) -> Trace:
    """Return some consecutive steps of a job as a session."""
    steps = np.unique(trace.step)[first : first + SESSION_STEPS]
    mine = np.isin(trace.step, steps)
    return replace(trace, **{name: getattr(trace, name)[mine] for name in _COLUMNS})


def lines(sessions: Sequence[Held]) -> Iterator[str]:
    """Yield the table."""
    yield "| fault | sessions | with causes | holds | below | above | width, median |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for fault in dict.fromkeys(held.fault for held in sessions):
        yield _row(fault, [held for held in sessions if held.fault == fault])
    yield _row("all", sessions)


def _row(name: str, sessions: Sequence[Held]) -> str:
    known = [held for held in sessions if held.interval is not None]
    if not known:
        return f"| {name} | {len(sessions)} | 0 | – | – | – | – |"
    below, above = (np.mean([getattr(held, side) for held in known]) for side in ("below", "above"))
    width = np.median(
        [(held.interval[1] - held.interval[0]) / held.headline for held in known if held.interval]
    )
    shares = (1 - below - above, below, above, width)
    figures = " | ".join(f"{100 * float(share):.1f} %" for share in shares)
    return f"| {name} | {len(sessions)} | {len(known)} | {figures} |"


def main() -> None:
    """Draw jobs, analyze their sessions, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20, help="of each fault")
    parser.add_argument("--seed", type=int, default=None, help="of the first job; else drawn now")
    parser.add_argument("--faults", nargs="*", default=None, help="only these")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 40) + (1 << 24) if options.seed is None else options.seed
    faults = options.faults or [name for name in FAULTS if name not in UNSTEADY]
    wanted = [
        (fault, seed + number * options.jobs + job)
        for number, fault in enumerate(faults)
        for job in range(options.jobs)
    ]
    sys.stdout.write(f"seeds from {seed}\n")
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        found = [held for some in pool.imap(hold, wanted, chunksize=4) for held in some]
    for line in lines(found):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
