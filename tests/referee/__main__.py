"""Score the diagnosis on the second physics: ``make score PHYSICS=independent``.

Without a seed, seeds are drawn and printed, and the figure is the worst of all draws.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from functools import partial
from multiprocessing import get_context

from tests.oracles.physics.draw import FAULTS
from tests.referee.judging import judge_seed
from tests.referee.table import lines, macro_f1


def main() -> None:
    """Print the table of each draw, and the worst draw last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the first job; one draw")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--healthy", type=float, default=0.25, help="share of healthy jobs")
    parser.add_argument("--fault", choices=sorted(FAULTS), help="of every job")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--misses", action="store_true", help="also print what was missed")
    arguments = parser.parse_args()
    seeds = (
        [arguments.seed]
        if arguments.seed is not None
        else [secrets.randbelow(1 << 40) for _ in range(arguments.draws)]
    )
    worst = (2.0, "")
    for first in seeds:
        of_seed = partial(judge_seed, healthy=arguments.healthy, only=arguments.fault)
        span = range(first, first + arguments.jobs)
        with get_context("spawn").Pool(arguments.processes) as pool:
            verdicts = list(pool.imap(of_seed, span, chunksize=4))
        if arguments.misses:
            for verdict in verdicts:
                if verdict.lead != verdict.cause or verdict.worker_right is False:
                    sys.stdout.write(f"{verdict}\n")
        table = list(lines(verdicts))
        sys.stdout.write(f"Seeds {first} to {first + arguments.jobs - 1}\n")
        sys.stdout.writelines(f"{line}\n" for line in table)
        sys.stdout.flush()
        worst = min(worst, (macro_f1(verdicts), table[-1]))
    if len(seeds) > 1:
        sys.stdout.write(f"Worst of {len(seeds)} draws: {worst[1]}\n")


if __name__ == "__main__":
    main()
