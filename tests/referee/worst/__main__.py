"""Print the judged figure: ``make judged DRAWS=5 JOBS=1000``."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.registry import title_of
from tests.referee.judging import NONE
from tests.referee.worst.draw import PHYSICS, Draw, draw

# Of so many healthy jobs, so many of each cause.
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
    for number, one in enumerate(draws, 1):
        slow = len(one.jobs) - len(one.healthy)
        least = min(one.f1.values())
        yield (
            f"draw {number}, seeds from {one.first_seed}: {len(one.healthy)} healthy, {slow} slow; "
            f"macro F1 {one.macro_f1:.3f}, least {least:.3f}, "
            f"false alarms {100 * one.false_alarms:.1f} %, "
            f"headline within 3 % in {100 * one.near:.1f} %, "
            f"worst worker {100 * one.worst_worker:.1f} %"
        )
    least, cause = min((value, name) for one in draws for name, value in one.f1.items())
    yield (
        f"{physics.name}, worst of {len(draws)}: "
        f"macro F1 {min(one.macro_f1 for one in draws):.3f}, "
        f"least {least:.3f} ({title_of(cause).lower()}), "
        f"false alarms {100 * max(one.false_alarms for one in draws):.1f} %, "
        f"headline within 3 % in {100 * min(one.near for one in draws):.1f} %, "
        f"worst worker {100 * float(np.nanmin([one.worst_worker for one in draws])):.1f} %"
    )


def main() -> None:
    """Draw, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1000, help="healthy ones; 6 % of each cause")
    parser.add_argument("--seed", type=int, default=None, help="of the first job; else drawn now")
    parser.add_argument("--physics", choices=("both", *PHYSICS), default="both")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--misses", action="store_true", help="also print what was missed")
    options = parser.parse_args()
    chosen = list(PHYSICS) if options.physics == "both" else [options.physics]
    each = max(1, round(_EACH * options.jobs))
    with get_context("spawn").Pool(options.processes) as pool:
        judging = partial(pool.imap, chunksize=4)
        for physics in map(PHYSICS.__getitem__, chosen):
            draws = []
            for number in range(options.draws):
                first = (
                    secrets.randbelow(1 << 40) + (1 << 24)
                    if options.seed is None
                    else options.seed + number * (1 << 24)
                )
                sys.stdout.write(f"{physics.name} physics, draw {number + 1}: seeds from {first}\n")
                sys.stdout.flush()
                draws.append(draw(physics, first, options.jobs, each, judging))
                if options.misses:
                    for job in draws[-1].jobs:
                        if job.lead != job.cause or (job.cause != NONE and not job.near):
                            sys.stdout.write(f"{job}\n")
            sys.stdout.writelines(f"{line}\n" for line in lines(draws))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
