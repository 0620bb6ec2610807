"""Print the judged figure: ``make judged DRAWS=5 JOBS=1000``.

The figures of each draw are printed when it is complete, and those of an incomplete draw when the
run is stopped. ``--keep FILE`` stores all judged jobs, so that the next run continues from there.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.registry import title_of
from tests.referee.judging import NONE
from tests.referee.worst.draw import PHYSICS, Draw, Mapping, Physics, draw
from tests.referee.worst.few_steps import physics_of
from tests.referee.worst.journal import Journal
from tests.referee.worst.processes import judging

# Numbers of healthy jobs of a draw, and of jobs of each cause.
_EACH: Final = 0.06


def lines(draws: Sequence[Draw]) -> Iterator[str]:
    """Yield the figures of all draws of one physics, and the worst of each last."""
    physics = draws[0].physics
    yield f"{f'F1, {physics.name} physics':<30}" + "".join(
        f"{f'draw {number}':>10}" for number in range(1, len(draws) + 1)
    )
    for cause in physics.causes:
        values = "".join(f"{one.f1[cause]:>10.3f}" for one in draws)
        yield f"{title_of(cause):<30}{values}"
    yield ""
    yield from (_summary(f"draw {number}", one) for number, one in enumerate(draws, 1))
    least, cause = min((value, name) for one in draws for name, value in one.f1.items())
    yield (
        f"{physics.name}, worst of {len(draws)}: "
        f"macro F1 {min(one.macro_f1 for one in draws):.3f}, "
        f"least {least:.3f} ({title_of(cause).lower()}), "
        f"false alarms {100 * max(one.false_alarms for one in draws):.1f} %, "
        f"headline within 3 % in {100 * min(one.near for one in draws):.1f} %, "
        f"worst worker {100 * float(np.nanmin([one.worst_worker for one in draws])):.1f} %"
    )


def _summary(name: str, one: Draw) -> str:
    slow = len(one.jobs) - len(one.healthy)
    # A stopped draw may lack some causes.
    judged = ((value, title_of(key)) for key, value in one.f1.items() if not math.isnan(value))
    least, cause = min(judged, default=(math.nan, "none"))
    return (
        f"{name}, seeds from {one.first_seed}: {len(one.healthy)} healthy, {slow} slow; "
        f"macro F1 {one.macro_f1:.3f}, least {least:.3f} ({cause.lower()}), "
        f"false alarms {100 * one.false_alarms:.1f} %, "
        f"headline within 3 % in {100 * one.near:.1f} %, "
        f"worst worker {100 * one.worst_worker:.1f} %"
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """The requested draws."""

    physics: tuple[str, ...]
    draws: int
    healthy: int
    each: int
    seed: int | None
    misses: bool
    physics_of: dict[str, Physics] = field(default_factory=lambda: dict(PHYSICS))


def judge_draws(asked: Asked, journal: Journal, mapping: Mapping) -> dict[str, list[Draw]]:
    """Judge draw by draw, each on every physics, and print the figures.

    If stopped by the keyboard, it prints the figures of the incomplete draw.
    """
    done: dict[str, list[Draw]] = {name: [] for name in asked.physics}
    for number, name in product(range(1, asked.draws + 1), asked.physics):
        physics, key = asked.physics_of[name], (name, number)
        seed = asked.seed
        first = journal.first_seed(
            key,
            lambda seed=seed, number=number: (  # type: ignore[misc]
                secrets.randbelow(1 << 40) + (1 << 24)
                if seed is None
                else seed + (number - 1) * (1 << 24)
            ),
        )
        _say(f"{name} physics, draw {number}: seeds from {first}")
        began_s, known = time.monotonic(), len(journal.jobs(key))
        try:
            one = draw(physics, first, asked.healthy, asked.each, journal.resumed(key, mapping))
        except KeyboardInterrupt:
            partial = tuple(job for job in journal.jobs(key) if job.slow)
            _say(_summary(f"{name}, draw {number}, stopped", Draw(physics, first, partial)))
            break
        done[name].append(one)
        minutes = (time.monotonic() - began_s) / 60
        rate = (len(journal.jobs(key)) - known) / max(minutes, 1e-9)
        _say(f"{_summary(f'{name}, draw {number}', one)}; {rate:.0f} jobs a minute")
        if asked.physics_of is not PHYSICS and one.healthy:
            seems = sum(job.near for job in one.healthy)
            _say(f"healthy and said to be 1.03 at most: {seems} of {len(one.healthy)}")
        if asked.misses:
            for job in one.jobs:
                if job.lead != job.cause or (job.cause != NONE and not job.near):
                    _say(str(job))
    return done


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Draw, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1000, help="healthy ones; 6 %% of each cause")
    parser.add_argument("--seed", type=int, default=None, help="of the first job; else drawn now")
    parser.add_argument("--physics", choices=("both", *PHYSICS), default="both")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, default=None, metavar="FILE", help="to go on from")
    parser.add_argument("--steps", type=int, default=None, help="sessions cut to as many")
    parser.add_argument("--misses", action="store_true", help="also print what was missed")
    options = parser.parse_args()
    asked = Asked(
        physics=tuple(PHYSICS) if options.physics == "both" else (options.physics,),
        draws=options.draws,
        healthy=options.jobs,
        each=max(1, round(_EACH * options.jobs)),
        seed=options.seed,
        misses=options.misses,
        physics_of=PHYSICS if options.steps is None else physics_of(options.steps),
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with judging(options.processes) as pool:
        done = judge_draws(asked, Journal.opened(options.keep), pool.imap_unordered)
    for draws in done.values():
        if draws:
            sys.stdout.writelines(f"{line}\n" for line in lines(draws))


if __name__ == "__main__":
    main()
