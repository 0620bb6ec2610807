"""Compare promised gains with realized ones: ``make fixes``.

Half of the jobs are of the second physics, half of the product's synthesizer. Without a seed, one
is drawn and printed.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from functools import partial
from multiprocessing import get_context

from app.analysis.synthesis.random_sessions import CAUSES
from tests.oracles.physics.draw import FAULTS, MIXED_FAULTS
from tests.referee.fixes import own
from tests.referee.fixes.promise import NEAR
from tests.referee.fixes.referee import referee
from tests.referee.fixes.table import lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the first job")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--physics", choices=("both", "own", "independent"), default="both")
    parser.add_argument("--healthy", type=float, default=0.25, help="share of healthy jobs")
    parser.add_argument(
        "--fault",
        choices=sorted({*FAULTS, *MIXED_FAULTS, *CAUSES, *own.MIXED}),
        help="of every job",
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--misses", action="store_true", help="also print what was missed")
    options = parser.parse_args()
    first = secrets.randbelow(1 << 40) if options.seed is None else options.seed
    of_seed = partial(referee, healthy=options.healthy, only=options.fault, physics=options.physics)
    with get_context("spawn").Pool(options.processes) as pool:
        jobs = list(pool.imap(of_seed, range(first, first + options.jobs), chunksize=4))
    if options.misses:
        for promise in (promise for job in jobs for promise in job.promises):
            if promise.error > NEAR:
                sys.stdout.write(f"{promise}\n")
    sys.stdout.write(f"Seeds {first} to {first + options.jobs - 1}\n")
    sys.stdout.writelines(f"{line}\n" for line in lines(jobs))


if __name__ == "__main__":
    main()
